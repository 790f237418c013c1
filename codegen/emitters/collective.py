"""Text of the collectives that a plan writes out."""

from meshwright.ir.graph import Op
from meshwright.ir.ops.collective import REDISTRIBUTE

from ..local import Locals
from .call import Emit


def _redistribute(op: Op, names: list[str], local: Locals) -> str:
    kind, dim, outer = op.attr("kind"), op.attr("dim"), op.attr("outer", 1)
    if kind == "all_reduce":
        return f'collectives.all_reduce({names[0]}, "{op.attr("op")}", TP)'
    size = local.size_text(outer)
    if kind == "slice":
        return f"collectives.shard({names[0]}, {dim}, {size}, TP_RANK, {local.mesh.size('tp')})"
    if kind == "all_to_all":
        source = f"{op.attr('src_dim')}, {local.size_text(op.attr('src_outer', 1))}"
        return f"collectives.all_to_all({names[0]}, {dim}, {size}, {source}, TP)"
    return f"collectives.{kind}({names[0]}, {dim}, {size}, TP)"


EMITTERS: dict[str, Emit] = {REDISTRIBUTE: _redistribute}
