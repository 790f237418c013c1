"""Text of the collectives that a plan writes out."""

from meshwright.ir.graph import Op
from meshwright.ir.ops.collective import REDISTRIBUTE

from ..local import Locals, group_name, rank_name
from .call import Emit


def _redistribute(op: Op, names: list[str], local: Locals) -> str:
    kind, axis, dim = op.attr("kind"), str(op.attr("axis")), op.attr("dim")
    group, size = group_name(axis), local.size_text(op.attr("outer", 1))
    order = "".join(f", {name}=True" for name in ("mirrored", "src_mirrored") if op.attr(name))
    if kind == "all_reduce":
        return f'collectives.all_reduce({names[0]}, "{op.attr("op")}", {group})'
    if op.attr("halo"):
        given = f"{dim}, {op.attr('halo')}, {rank_name(axis)}, {group}"
        return f"collectives.{kind}({names[0]}, {given})"
    if kind == "slice":
        place = f"{rank_name(axis)}, {local.ranks(axis)}"
        return f"collectives.shard({names[0]}, {dim}, {size}, {place}{order})"
    if kind == "all_to_all":
        source = f"{op.attr('src_dim')}, {local.size_text(op.attr('src_outer', 1))}"
        return f"collectives.all_to_all({names[0]}, {dim}, {size}, {source}, {group}{order})"
    return f"collectives.{kind}({names[0]}, {dim}, {size}, {group}{order})"


EMITTERS: dict[str, Emit] = {REDISTRIBUTE: _redistribute}
