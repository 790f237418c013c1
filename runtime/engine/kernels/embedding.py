"""Embedding lookup in a vocabulary shard. `start` is the first id that this rank's rows hold."""

import torch
from torch import Tensor

from .linear import add_linear_weight_grad
from .opaque import opaque

# Ids of which a matmul sums the rows on a GPU, where index_add_ takes turns at each of so few rows:
# 32 ids of 131,072 rows of 2,880 and 5,760 took 3.7 ms (an H200, 2026-12-01).
FEW_IDS = 256


def embedding(ids: Tensor, w: Tensor, start: int, num_embeddings: int) -> Tensor:
    """ids [...], w [V / n, D] -> [..., D]; rows of ids held elsewhere are 0."""
    if w.shape[0] == num_embeddings:
        return torch.nn.functional.embedding(ids, w)
    here = (ids >= start) & (ids < start + w.shape[0])
    rows = torch.nn.functional.embedding(torch.where(here, ids - start, 0), w)
    return torch.where(here.unsqueeze(-1), rows, 0)


def embedding_weight_grad(
    dy: Tensor, ids: Tensor, start: int, rows: int, padding_idx: int = -1
) -> Tensor:
    """dy [..., D], ids [...] -> [rows, D] of the ids from `start` on; 0 for id padding_idx."""
    dw = dy.new_zeros((rows, dy.shape[-1]))
    add_embedding_weight_grad(dw, dy, ids, start, rows, padding_idx)
    return dw


def add_embedding_weight_grad(
    grad: Tensor, dy: Tensor, ids: Tensor, start: int, rows: int, padding_idx: int = -1
) -> None:
    """Add embedding_weight_grad(dy, ids) to grad [rows, D]. The rows of an id are summed in at
    least float32, as torch sums them: in bfloat16 a sum of 256 gains nothing from a row of 0.5."""
    dy_ND, ids_N = dy.reshape(-1, dy.shape[-1]), ids.reshape(-1)
    here = (ids_N >= start) & (ids_N < start + rows) & (ids_N != padding_idx)
    dtype = torch.promote_types(dy.dtype, torch.float32)
    kept_ND = torch.where(here.unsqueeze(-1), dy_ND, 0)
    if dy.is_cuda and rows <= FEW_IDS and dtype != dy.dtype:
        add_in_columns(grad, kept_ND, ids_N - start)
        return
    # What this rank does not hold adds zeros to rows far apart, as adding to one takes turns.
    index = torch.where(here, ids_N - start, ids_N % rows)
    _add(grad, index, kept_ND.to(dtype))


def add_in_columns(grad: Tensor, rows: Tensor, index: Tensor) -> None:
    """Add rows [N, D] to those of grad [R, D] that index [N] names; of others nothing is added. One
    matmul sums them, by columns of ones where a row is of that index."""
    columns = index.unsqueeze(-1) == torch.arange(grad.shape[0], device=index.device)
    add_linear_weight_grad(grad, columns.to(rows.dtype), rows)


def _add_rows(grad: Tensor, index: Tensor, rows: Tensor) -> None:
    if torch.promote_types(grad.dtype, rows.dtype) == grad.dtype:
        grad.index_add_(0, index, rows.to(grad.dtype))
    else:
        grad.index_add_(0, index, _summed(grad.shape[0], index, rows).to(grad.dtype))


def _summed(count: int, index: Tensor, rows: Tensor) -> Tensor:
    """The sum of the rows of each index in place of one of them, and zeros in place of the others.
    count: of indices that there may be."""
    places = torch.arange(index.shape[0], device=index.device)
    of_index = index.new_zeros(count).index_put_((index,), places)
    return torch.zeros_like(rows).index_add_(0, of_index[index], rows)


# An op of its own, as torch.compile would add the rows to a copy of grad.
_add = opaque(_add_rows, lambda grad, index, rows: None, mutates=("grad",))
