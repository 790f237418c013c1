"""One segment of a plan, op by op: what each costs a rank, and what binds it."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meshwright.ir.errors import PlanError
from meshwright.ir.graph import Op
from meshwright.ir.ops.registry import definition
from meshwright.ir.placement import format_placement
from meshwright.ir.plan import Piece, Plan

from ..cost.op_cost import Costs
from ..cost.phase_work import PhaseWork, functions_of
from ..cost.piece_cost import PieceWork, op_us
from ..hardware.cluster import Cluster
from ..simulate.step_model import work_table
from ..units import gib

_PHASES = ("forward", "backward")


@dataclass(frozen=True)
class OpCost:
    """An op of a phase on one rank. value: that it makes, of a collective that which it moves.

    placement: of that value, "" of a collective. bound_by: flops, memory, launch or link. again:
    backward computes it a second time.
    """

    phase: str
    op: str
    value: str
    placement: str
    us: float
    flops: float
    bound_by: str
    again: bool

    @property
    def line(self) -> str:
        """Return its line of the table."""
        what = f"{self.op} %{self.value} {self.placement}"
        note = "  again" if self.again else ""
        times = f"{self.us:>9,.1f}  {self.flops / 1e9:>9,.1f}"
        return f"    {what[:42]:<42} {times}  {self.bound_by}{note}"


@dataclass(frozen=True)
class SegmentCost:
    """A piece of a plan on one rank: its work on a micro-batch, and that of its ops."""

    piece: Piece
    uses: int
    work: PieceWork
    ops: tuple[OpCost, ...]


def segment_cost(plan: Plan, name: str, cluster: Cluster) -> SegmentCost:
    """Price a piece op by op. name: of it, or of an instance. Raises PlanError naming the
    nearest."""
    piece = _piece(plan, name)
    table = work_table(plan, cluster)
    work = table.of(piece.graph, piece.placements, piece.saved, offloaded=piece.offloaded)
    uses = sum(i.piece == piece.name for i in plan.instances)
    return SegmentCost(piece, uses, work, tuple(_ops(piece, table.costs)))


def explain_segment(plan: Plan, name: str, cluster: Cluster) -> str:
    """Times of a piece's ops on one rank, forward and backward, slowest named by what binds them.

    name: of a piece, or of an instance. Raises PlanError naming the nearest.
    """
    cost = segment_cost(plan, name, cluster)
    work = cost.work
    lines = [
        f"segment {cost.piece.name}, {cost.uses} instances; {plan.micro_batch} x {plan.seq} tokens "
        f"a micro-batch on {plan.mesh}",
        f"  forward {work.forward.us:,.0f} us, backward {work.backward.us:,.0f} us "
        f"({work.again_us:,.0f} of it computing again); keeps {gib(work.kept_bytes)}"
        + (f", {gib(work.away_bytes)} more in the host's memory" if work.away_bytes else ""),
        *_waiting(work),
    ]
    return "\n".join([*lines, *(line for phase in _PHASES for line in _op_lines(cost, phase))])


def _op_lines(cost: SegmentCost, phase: str) -> list[str]:
    head = f"  {phase:<44} {'us':>9}  {'Gflop':>9}  bound by"
    return ["", head, *(op.line for op in cost.ops if op.phase == phase)]


def _waiting(work: PieceWork) -> Iterator[str]:
    """What the ops below do not add up to."""
    us = [phase.waiting_us for phase in (work.forward, work.backward)]
    if any(us):
        yield (
            f"  the device waits for the host to issue it: {us[0]:,.0f} us in forward, "
            f"{us[1]:,.0f} us in backward"
        )


def segment_facts(plan: Plan, name: str, cluster: Cluster) -> dict[str, Any]:
    """Return what explain_segment says, as data in the terms of data.py."""
    cost = segment_cost(plan, name, cluster)
    work = cost.work
    return {
        "segment": cost.piece.name,
        "cluster": cluster.name,
        "instances": cost.uses,
        "forward_s": work.forward.us / 1e6,
        "backward_s": work.backward.us / 1e6,
        "again_s": work.again_us / 1e6,
        "kept_bytes": work.kept_bytes,
        "host_bytes": work.away_bytes,
        "ops": [_op_facts(op) for op in cost.ops],
    }


def _op_facts(op: OpCost) -> dict[str, Any]:
    return {
        "phase": op.phase,
        "op": op.op,
        "value": op.value,
        "placement": op.placement or None,
        "time_s": op.us / 1e6,
        "flops": op.flops,
        "bound_by": op.bound_by,
        "again": op.again,
    }


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


def _ops(piece: Piece, costs: Costs) -> Iterator[OpCost]:
    """Yield the ops of both phases; none of views and of ops inside a fused kernel."""
    functions = functions_of(piece.graph, piece.saved)
    recomputed = functions.phases.recomputed
    for phase, work in zip(_PHASES, (functions.forward, functions.backward), strict=True):
        for op in work.graph.ops:
            us = 0.0 if definition(op).free else op_us(op, work, piece.placements, costs)
            again = phase == "backward" and op.output.name in recomputed
            if us:
                yield _op_cost(phase, op, work, piece, costs, us, again)


def _op_cost(
    phase: str, op: Op, work: PhaseWork, piece: Piece, costs: Costs, us: float, again: bool
) -> OpCost:
    flops = costs.number(work.of[op.output.name].flops)
    if definition(op).collective:
        return OpCost(phase, str(op.attr("kind")), op.inputs[0], "", us, flops, "link", again)
    at = format_placement(piece.placements[op.output.name])
    bound = _bound(op, work, costs, us, flops)
    return OpCost(phase, op.target, op.output.name, at, us, flops, bound, again)


def _bound(op: Op, work: PhaseWork, costs: Costs, us: float, flops: float) -> str:
    device = costs.cluster.device
    if us <= 2 * device.launch_us:
        return "launch"
    moved = [v for v in (*work.of[op.output.name].operands, *op.outputs) if v is not None]
    most = sum(map(costs.full_bytes, moved)) / device.hbm_bytes_per_s
    rate = device.matmul_rate(work.of[op.output.name].dtype)
    return "flops" if flops / rate > most else "memory"
