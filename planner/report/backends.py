"""What computes the ops whose kernels choose by device, dtype and sizes, and what that costs."""

from collections.abc import Iterator

from meshwright.ir.graph import Op
from meshwright.ir.ops.questions import implementation
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import forward_ops
from meshwright.ir.plan import Piece, Plan

from ..cost.phase_work import functions_of
from ..cost.piece_cost import Priced, op_us
from ..hardware.cluster import Cluster
from ..simulate.step_model import work_table
from ..units import gib

WARN_SHARE = 0.05  # of a step, from which a fallback is a warning


def backends(plan: Plan, cluster: Cluster) -> Iterator[str]:
    """Yield a line for each op of a piece that several implementations take."""
    device = cluster.device.type
    sizes = {"B": plan.micro_batch, "S": plan.seq}
    for piece in plan.pieces:
        for op in forward_ops(piece.graph):
            if len(definition(op).implementations) == 1:
                continue
            chosen = implementation(op, piece.graph, sizes, device)
            name = "nothing" if chosen is None else chosen.name
            line = f"{op.target} of {piece.name} is computed by {name} on {device}"
            if chosen is None or chosen.scores is None:
                yield f"chosen: {line}"
            else:
                yield _fallback(plan, piece, op, line, cluster)


def _fallback(plan: Plan, piece: Piece, op: Op, line: str, cluster: Cluster) -> str:
    """The line of an op that holds the scores of an attention, with their price."""
    asked = definition(op)
    costs = work_table(plan, cluster).costs
    functions = functions_of(piece.graph, piece.saved)
    priced = Priced(functions.phases.joint.graph, piece.placements, costs)
    took_us, held = 0.0, 0.0
    for work in (functions.forward, functions.backward):
        for one in work.graph.ops:
            if definition(one).queries is not None and definition(one).kind == asked.kind:
                took_us += op_us(one, work, piece.placements, costs)
                held = max(held, priced.workspace(one, work))
    stages = [i.stage for i in plan.instances if i.piece == piece.name]
    ranks = [plan.stage_ranks[stage] for stage in stages]
    uses = max(map(ranks.count, ranks), default=0) * plan.num_microbatches
    step_us = dict(plan.costs).get("predicted_step_us", 0.0)
    share = took_us * uses / step_us if step_us else 0.0
    warning = "warning: " if share > WARN_SHARE else ""
    return (
        f"fell back: {warning}{line}, which holds all scores: {gib(held)} at once, "
        f"{min(share, 1.0):.0%} of the step"
    )
