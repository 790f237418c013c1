"""Text of ops whose kernels stand in runtime/engine/kernels."""

from functools import partial

from meshwright.ir.graph import Op
from meshwright.ir.ops.dropout import rows_in
from meshwright.ir.ops.registry import DEFINITIONS, definition
from meshwright.ir.placement import local_outer

from ..local import Locals, rank_name
from .call import Emit, attr_text


def _kernel(op: Op, names: list[str], local: Locals) -> str:
    attrs = [f"{k}={attr_text(v, local)}" for k, v in op.attrs]
    return f"{definition(op).call}({', '.join([*names, *attrs])})"


def _attention(op: Op, names: list[str], local: Locals) -> str:
    """Queries of a shard of the sequence begin at `start` of the keys, the second half of mirrored
    ones at `tail`. Keys and values are whole, or those of the shard behind a halo."""
    queries = definition(op).queries
    assert queries is not None
    keys = local.placement(op.inputs[queries + 1]).dims[2]
    start = str(keys[0].halo) if keys else local.start_text(op.inputs[queries], 2)
    starts = (start, local.tail_text(op.inputs[queries], 2))
    named = zip(("start", "tail"), starts, strict=True)
    given = "".join(f", {name}={text}" for name, text in named if text not in ("0", ""))
    return f"{_kernel(op, names, local)[:-1]}{given})"


def _dropout(op: Op, names: list[str], local: Locals) -> str:
    """The kernel counts elements in the logical tensor: it is told where shards begin in it."""
    shape, placement = op.output.shape, local.placement(op.output.name)
    given = [*names, f"p={op.attr('p')}", f"number={op.attr('number')}"]
    dim, inner = (rows_in(shape) if len(names) > 2 else None) or (0, 1)
    given += [f"row_dim={dim}"] * (dim > 0) + [f"inner={local.size_text(inner)}"] * (inner != 1)
    cut = [dim for dim, shards in enumerate(placement.dims) if shards]
    sizes = [local.size_text(size) for size in shape]
    parts = ", ".join(f"{dim}: ({_places(op, dim, local)}, {sizes[dim]})" for dim in cut)
    return f"{definition(op).call}({', '.join(given)}{f', cut={{{parts}}}' * bool(cut)})"


def _places(op: Op, dim: int, local: Locals) -> str:
    """The first element of a dim that a rank holds; all of them where they do not follow it."""
    name = op.output.name
    placement = local.placement(name)
    shards = placement.dims[dim]
    if len(shards) == 1 and shards[0].outer == 1 and not shards[0].mirrored:
        return local.start_text(name, dim)
    text = f"torch.arange({local.size_text(op.output.shape[dim])}, device=DEVICE)"
    for shard in shards:
        outer = local.size_text(local_outer(placement, shard.axis, local.mesh))
        order = ", mirrored=True" * shard.mirrored
        place = f"{rank_name(shard.axis)}, {local.mesh.size(shard.axis)}{order}"
        text = f"collectives.shard({text}, 0, {outer}, {place})"
    return text


def _embedding(op: Op, names: list[str], local: Locals) -> str:
    rows = local.graph.values[op.inputs[1]].shape[0]
    start = local.start_text(op.inputs[1], 0)
    return f"kernels.embedding({', '.join(names)}, start={start}, num_embeddings={rows})"


def _embedding_weight_grad(op: Op, names: list[str], local: Locals) -> str:
    rows = local.size_text(local.shape(op.output)[0])
    start = local.start_text(op.output.name, 0)
    padding = op.attr("padding_idx")
    skip = "" if padding is None else f", padding_idx={padding}"
    return f"kernels.embedding_weight_grad({', '.join(names)}, start={start}, rows={rows}{skip})"


def _experts(op: Op, names: list[str], local: Locals) -> str:
    """The kernel takes the first expert of a weight's shard for 0 where it is not told."""
    start = local.start_text(op.inputs[1], 0)
    first = "" if start == "0" else f", start={start}"
    return f"{_kernel(op, names, local)[:-1]}{first})"


def _experts_weight_grad(op: Op, names: list[str], local: Locals) -> str:
    experts = local.size_text(local.shape(op.output)[0])
    start = local.start_text(op.output.name, 0)
    first = "" if start == "0" else f", start={start}"
    given = f"experts={experts}, transposed={op.attr('transposed', False)}{first}"
    return f"{definition(op).call}({', '.join(names)}, {given})"


def _cross_entropy(weight: int, op: Op, names: list[str], local: Locals) -> str:
    """weight: position of the operand whose shard says where the vocabulary begins."""
    made = definition(op)
    keeping = "_keeping" if made.passing_output == len(op.outputs) - 1 else ""
    softcap, start = op.attr("softcap"), local.start_text(op.inputs[weight], 0)
    return f"{made.call}{keeping}({', '.join(names)}, softcap={softcap}, start={start})"


EMITTERS: dict[str, Emit] = {
    **{name: _kernel for name, made in DEFINITIONS.items() if made.call.startswith("kernels.")},
    **{name: _attention for name, made in DEFINITIONS.items() if made.queries is not None},
    "mw.dropout": _dropout,
    "mw.embedding": _embedding,
    "mw.embedding_weight_grad": _embedding_weight_grad,
    "mw.expert_linear": _experts,
    "mw.expert_linear_input_grad": _experts,
    "mw.expert_linear_weight_grad": _experts_weight_grad,
    "mw.linear_cross_entropy": partial(_cross_entropy, 1),
    "mw.linear_cross_entropy_backward": partial(_cross_entropy, 3),
}
