"""One segment of a plan, op by op: what each costs a rank, and what binds it."""

import difflib

from meshwright.ir.errors import PlanError
from meshwright.ir.graph import Op
from meshwright.ir.ops.registry import definition
from meshwright.ir.placement import format_placement
from meshwright.ir.plan import Piece, Plan

from ..cost.op_cost import Costs
from ..cost.phase_work import PhaseWork, functions_of
from ..cost.piece_cost import op_us
from ..hardware.cluster import Cluster
from ..simulate.step_model import work_table
from ..units import gib


def explain_segment(plan: Plan, name: str, cluster: Cluster) -> str:
    """Times of a piece's ops on one rank, forward and backward, slowest named by what binds them.

    name: of a piece, or of an instance. Raises PlanError naming the nearest.
    """
    piece = _piece(plan, name)
    table = work_table(plan, cluster)
    costs = table.costs
    work = table.of(piece.graph, piece.placements, piece.saved, offloaded=piece.offloaded)
    uses = sum(i.piece == piece.name for i in plan.instances)
    lines = [
        f"segment {piece.name}, {uses} instances; {plan.micro_batch} x {plan.seq} tokens a "
        f"micro-batch on {plan.mesh}",
        f"  forward {work.forward.us:,.0f} us, backward {work.backward.us:,.0f} us "
        f"({work.again_us:,.0f} of it computing again); keeps {gib(work.kept_bytes)}"
        + (f", {gib(work.away_bytes)} more in the host's memory" if work.away_bytes else ""),
    ]
    functions = functions_of(piece.graph, piece.saved)
    recomputed = functions.phases.recomputed
    for phase, ops in (("forward", functions.forward), ("backward", functions.backward)):
        lines += ["", f"  {phase:<44} {'us':>9}  {'Gflop':>9}  bound by"]
        for op in ops.graph.ops:
            again = phase == "backward" and op.output.name in recomputed
            lines += _op_line(op, ops, piece, costs, again)
    return "\n".join(lines)


def _piece(plan: Plan, name: str) -> Piece:
    by_instance = {i.name: i.piece for i in plan.instances}
    found = by_instance.get(name, name)
    names = [p.name for p in plan.pieces]
    if found not in names:
        near = difflib.get_close_matches(name, sorted({*names, *by_instance}), 3)
        raise PlanError(
            f"no segment {name} among the plan's {len(names)} pieces and {len(by_instance)} "
            f"instances; near: {', '.join(near) or ', '.join(names[:5])}"
        )
    return plan.piece(found)


def _op_line(op: Op, work: PhaseWork, piece: Piece, costs: Costs, again: bool) -> list[str]:
    """Return the line of an op; none for views and for ops inside a fused kernel."""
    if definition(op).free:
        return []
    us = op_us(op, work, piece.placements, costs)
    flops = costs.number(work.of[op.output.name].flops)
    if definition(op).collective:
        what, bound = f"{op.attr('kind')} %{op.inputs[0]}", "link"
    else:
        what = f"{op.target} %{op.output.name} {format_placement(piece.placements[op.output.name])}"
        bound = _bound(op, work, costs, us, flops)
    note = "  again" if again else ""
    return [f"    {what[:42]:<42} {us:>9,.1f}  {flops / 1e9:>9,.1f}  {bound}{note}"] if us else []


def _bound(op: Op, work: PhaseWork, costs: Costs, us: float, flops: float) -> str:
    device = costs.cluster.device
    if us <= 2 * device.launch_us:
        return "launch"
    moved = [v for v in (*work.of[op.output.name].operands, *op.outputs) if v is not None]
    most = sum(map(costs.full_bytes, moved)) / device.hbm_bytes_per_s
    rate = device.matmul_rate(work.of[op.output.name].dtype)
    return "flops" if flops / rate > most else "memory"
