"""Collectives on tensors, by dim and factor. A group of None is one rank: nothing to do.

Note. A dim of size outer * n * inner is cut over n ranks: `outer` is 1 for the ordinary contiguous
shard; otherwise each rank holds a stride of the dim. Of a mirrored shard rank r holds chunks r and
2n - 1 - r of 2n. All functions return a new tensor.
"""

import warnings

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None

# torch 2.13 renames these two; 2.11 has only the old names.
RENAMED = ".*is deprecated. Please use.*_single"
warnings.filterwarnings("ignore", message=RENAMED)


def all_reduce(x: Tensor, op: str, group: Group) -> Tensor:
    """The sum, max or log-sum-exp over ranks, on every rank; same shape."""
    if group is None:
        return x
    if op == "lse":
        top = all_reduce(x, "max", group)
        return top + torch.log(all_reduce(torch.exp(x - top), "sum", group))
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, op=dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM, group=group)
    return y


def all_gather(x: Tensor, dim: int, outer: int, group: Group, mirrored: bool = False) -> Tensor:
    """Shards along `dim` put together: [.., outer * m, ..] -> [.., outer * n * m, ..]."""
    if group is None:
        return x
    if x.dtype is torch.bool:  # compiled, torch's own gives the bytes of integers for these
        return all_gather(x.to(torch.uint8), dim, outer, group, mirrored).bool()
    n = group.size()
    parts = x.new_empty((n * x.shape[0], *x.shape[1:])) if x.dim() else x.new_empty((n,))
    dist.all_gather_into_tensor(parts, x.contiguous(), group=group)
    return _join(parts.view(n, *x.shape), dim, outer, mirrored)


def reduce_scatter(x: Tensor, dim: int, outer: int, group: Group, mirrored: bool = False) -> Tensor:
    """The sum over ranks, each keeping its shard along `dim`."""
    if group is None:
        return x
    parts = _split(x, dim, outer, group.size(), mirrored).contiguous()
    y = parts.new_empty(parts.shape[1:])
    dist.reduce_scatter_tensor(y, parts.view(-1, *parts.shape[2:]), group=group)
    return y


def all_to_all(
    x: Tensor,
    dim: int,
    outer: int,
    src_dim: int,
    src_outer: int,
    group: Group,
    mirrored: bool = False,
    src_mirrored: bool = False,
) -> Tensor:
    """Sharded along `src_dim` becomes sharded along `dim`."""
    if group is None:
        return x
    if x.dtype is torch.bool:
        given = dim, outer, src_dim, src_outer, group, mirrored, src_mirrored
        return all_to_all(x.to(torch.uint8), *given).bool()
    parts = _split(x, dim, outer, group.size(), mirrored).contiguous()
    y = torch.empty_like(parts)
    dist.all_to_all_single(y, parts, group=group)
    return _join(y, src_dim, src_outer, src_mirrored)


def halo(x: Tensor, dim: int, size: int, index: int, group: Group) -> Tensor:
    """The shard behind the last `size` elements of the rank before; the first rank has none."""
    if group is None:
        return x
    if x.dtype is torch.bool:
        return halo(x.to(torch.uint8), dim, size, index, group).bool()
    last = x.narrow(dim, x.shape[dim] - size, size)
    return torch.cat((_to_neighbour(last, dim, index, index + 1, index - 1, group), x), dim)


def reduce_halo(x: Tensor, dim: int, size: int, index: int, group: Group) -> Tensor:
    """The inverse of `halo` for shares: those of the halo are added to the rank before's."""
    if group is None:
        return x
    first = size if index > 0 else 0
    after = _to_neighbour(x.narrow(dim, 0, size), dim, index, index - 1, index + 1, group)
    own = x.narrow(dim, first, x.shape[dim] - first).clone()
    own.narrow(dim, own.shape[dim] - after.shape[dim], after.shape[dim]).add_(after)
    return own


def _to_neighbour(
    x: Tensor, dim: int, index: int, to: int, source: int, group: dist.ProcessGroup
) -> Tensor:
    """What `source` sends of its own; nothing where there is no such rank."""
    n, size = group.size(), x.shape[dim]
    parts = x.movedim(dim, 0)[: size if 0 <= to < n else 0].contiguous()
    sent, received = ([size if k == rank else 0 for k in range(n)] for rank in (to, source))
    y = parts.new_empty((sum(received), *parts.shape[1:]))
    dist.all_to_all_single(y, parts, received, sent, group=group)
    return y.movedim(0, dim)


def shard(x: Tensor, dim: int, outer: int, index: int, n: int, mirrored: bool = False) -> Tensor:
    """Shard `index` of n along `dim`."""
    return _split(x, dim, outer, n, mirrored)[index].contiguous()


def _split(x: Tensor, dim: int, outer: int, n: int, mirrored: bool = False) -> Tensor:
    """[.., outer * n * m, ..] -> [n, .., outer * m, ..]."""
    if mirrored:
        chunks = _split(x, dim, outer, 2 * n)
        pairs = torch.stack((chunks[:n], chunks[n:].flip(0)))
        return _join(pairs, dim + 1, outer)
    pre, post = x.shape[:dim], x.shape[dim + 1 :]
    m = x.shape[dim] // (outer * n)
    parts = x.reshape(*pre, outer, n, m, *post).movedim(dim + 1, 0)
    return parts.reshape(n, *pre, outer * m, *post)


def _join(parts: Tensor, dim: int, outer: int, mirrored: bool = False) -> Tensor:
    """[n, .., outer * m, ..] -> [.., outer * n * m, ..]."""
    if mirrored:
        heads, tails = _split(parts, dim + 1, outer, 2)
        return _join(torch.cat((heads, tails.flip(0))), dim, outer)
    n, shape = parts.shape[0], parts.shape[1:]
    pre, post = shape[:dim], shape[dim + 1 :]
    m = shape[dim] // outer
    whole = parts.reshape(n, *pre, outer, m, *post).movedim(0, dim + 1)
    return whole.reshape(*pre, outer * n * m, *post)


def send(x: Tensor, to: int, group: Group) -> dist.Work | None:
    """Start sending; keep the tensor until the returned work is done."""
    return dist.isend(x, to, group=group)


def receive(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, source: int, group: Group
) -> Tensor:
    x = torch.empty(shape, dtype=dtype, device=device)
    receive_into(x, source, group)
    return x


def receive_into(x: Tensor, source: int, group: Group) -> None:
    dist.recv(x, source, group=group)
