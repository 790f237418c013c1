"""What a plan decided, in text: a summary, the whole report, one value."""

import difflib
from dataclasses import replace
from typing import Any

from meshwright.ir.errors import PlanError
from meshwright.ir.graph import Op
from meshwright.ir.mesh import BATCH, CONTEXT
from meshwright.ir.ops.questions import passing
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import forward_ops, phases_of
from meshwright.ir.placement import format_placement
from meshwright.ir.plan import Piece, Plan
from meshwright.ir.sizes import evaluate, num_elements
from meshwright.ir.text.plan_text import plan_hash

from ..hardware.catalogue import CPU
from ..pipeline.schedules import in_flight
from ..simulate.stage_memory import Peak, plan_peaks
from ..simulate.step_model import step_model
from ..units import counted, duration, gib

Costs = tuple[tuple[str, float], ...]  # predicted numbers by name, as in Plan


def memory_by_kind(plan: Plan, rank: int) -> dict[str, int]:
    """Bytes of one device of a pp rank at its peak, by kind."""
    return {kind: int(size) for kind, size in peaks(plan)[rank].bytes_by_kind}


def peaks(plan: Plan) -> tuple[Peak, ...]:
    """The peak of every pp rank; bytes depend on the type of device, and on no cluster's rates."""
    device = replace(CPU.device, type=plan.device_type or CPU.device.type)
    return plan_peaks(plan, step_model(plan, replace(CPU, device=device)))


def _precision_words(plan: Plan) -> str:
    if plan.precision == "master":
        return f"weights and compute in {plan.dtype}, masters and moments in float32"
    rounded = f", updates rounded {plan.rounding}" if plan.rounding else ""
    return f"weights, moments and compute in {plan.dtype}{rounded}"


def summary(plan: Plan, costs: Costs | None = None) -> str:
    """Return the decision in a few lines. costs: shown in place of the plan's own."""
    mesh, ranks = plan.mesh, plan.mesh.count(*BATCH)
    memory = max(peak.total_bytes for peak in peaks(plan))
    params = sum(evaluate(num_elements(p.shape), {}) for p in plan.params)
    lines = [
        f"plan {plan_hash(plan)}: {plan.model}, {params:,} parameters, on {plan.cluster}",
        f"  mesh {mesh}; {plan.global_batch} rows of {plan.seq} tokens a step as "
        f"{counted(plan.num_microbatches, 'micro-batch')} of {plan.micro_batch} on "
        f"{'each of ' * (ranks > 1)}{counted(ranks, 'data rank')}",
        f"  ZeRO {plan.zero}; recompute {plan.recompute}; schedule {plan.schedule_name}; "
        f"{len(plan.instances)} segments of {len(plan.pieces)} kinds",
        f"  {_precision_words(plan)}: gradients summed in {plan.grad_dtype}, reduced in "
        f"{plan.reduce_dtype}; optimizer {plan.optimizer}",
        f"  peak memory of the fullest rank: {gib(memory)}",
    ]
    if plan.mirrored:
        lines.append(f"  sequence in mirrored shards over {mesh.only(CONTEXT)}")
    lines += [f"  {_cost(name, value)}" for name, value in costs or plan.costs]
    lines += [f"  note: {c}" for c in plan.coverage]
    return "\n".join(lines)


def _cost(name: str, value: float) -> str:
    """Return a predicted number as people read it; its name ends with the unit."""
    words = name.replace("_", " ")
    if name.endswith("_us"):
        return f"{words.removesuffix(' us')}: {duration(value)}"
    if name.endswith("_bytes"):
        return f"{words.removesuffix(' bytes')} memory: {gib(value)}"
    if name == "gap" or name.endswith("_share"):
        return f"{words}: {value:.2%}"
    return f"{words.replace(' per s', '/s')}: {value:,.{0 if value >= 1000 else 3}f}"


def report(plan: Plan, costs: Costs | None = None) -> str:
    """Return summary, memory by stage and kind, and one table row per piece and per stage."""
    lines = [summary(plan, costs), "", "peak memory of one device of each pp rank"]
    for rank, peak in enumerate(peaks(plan)):
        kinds, where = dict(peak.bytes_by_kind), peak.where
        parts = ", ".join(f"{name} {gib(size)}" for name, size in kinds.items())
        lines.append(f"  rank {rank}: {gib(sum(kinds.values()))} in {where} ({parts})")
    lines += ["", "stages"]
    for stage in range(plan.num_stages):
        mine = [i for i in plan.instances if i.stage == stage]
        rank = plan.stage_ranks[stage]
        lines.append(
            f"  stage {stage} on rank {rank}: {len(mine)} segments, {mine[0].name} to "
            f"{mine[-1].name}"
        )
    for rank, actions in enumerate(plan.schedule):
        lines.append(f"  rank {rank}: {in_flight(actions)} passes in flight")
    lines += ["", "pieces (bytes are of one micro-batch on one rank)"]
    for piece in plan.pieces:
        lines += _piece_lines(plan, piece)
    return "\n".join(lines)


def _piece_lines(plan: Plan, piece: Piece) -> list[str]:
    uses = sum(i.piece == piece.name for i in plan.instances)
    saved = [(plan.local_bytes(piece, n), n) for n in piece.saved]
    total = sum(size for size, _ in saved)
    moves = [op for op in piece.graph.ops if definition(op).collective]
    away = sum(plan.local_bytes(piece, n) for n in piece.offloaded)
    moved = f", {gib(away)} on the host" if away else ""
    lines = [
        f"  {piece.name} x{uses}: saves {len(saved)} values, {gib(total)}{moved}; "
        f"{len(moves)} redistributions"
    ]
    for item in piece.graph.inputs_of("param"):
        at = format_placement(piece.placements[item.value.name])
        lines.append(f"    weight %{item.value.name} @ {at}")
    for op in moves:
        lines.append(f"    {op.attr('kind')} %{op.inputs[0]} ({gib(_moved(plan, piece, op))})")
    for size, name in sorted(saved, reverse=True):
        where = ", on the host" if name in piece.offloaded else ""
        lines.append(f"    saved %{name} {gib(size)}{where}")
    return lines


def _moved(plan: Plan, piece: Piece, op: Op) -> int:
    less, more = sorted(plan.local_bytes(piece, n) for n in (op.inputs[0], op.output.name))
    return more - less if op.attr("halo") else more


def explain_value(plan: Plan, name: str) -> str:
    """Return where a value lies, whether it is kept, who makes and reads it, per piece that has
    it."""
    name = name.removeprefix("%")
    return "\n".join(line for p in pieces_with(plan, name) for line in _value_lines(plan, p, name))


def pieces_with(plan: Plan, name: str) -> list[Piece]:
    """Return the pieces that have a value. Raises PlanError with the nearest names without any."""
    holders = [p for p in plan.pieces if name in p.graph.values]
    if not holders:
        known = sorted({n for p in plan.pieces for n in p.graph.values})
        near = difflib.get_close_matches(name, known, 3)
        raise PlanError(
            f"no value %{name} among the plan's {len(known)}; near: {', '.join(near) or 'none'}"
        )
    return holders


def value_facts(plan: Plan, name: str) -> list[dict[str, Any]]:
    """Return of each piece that has a value what explain_value says of it there, as data."""
    name = name.removeprefix("%")
    return [_value_in(plan, piece, name) for piece in pieces_with(plan, name)]


def _value_in(plan: Plan, piece: Piece, name: str) -> dict[str, Any]:
    value, maker = piece.graph.values[name], piece.graph.producer.get(name)
    users = piece.graph.users[name]
    return {
        "piece": piece.name,
        "dtype": value.dtype,
        "shape": [str(size) for size in value.shape],
        "placement": format_placement(piece.placements[name]),
        "bytes": plan.local_bytes(piece, name),
        "op": maker.target if maker else None,
        "source": maker.source or None if maker else None,
        "fate": _kept(piece, name),
        "read_by": [{"value": op.output.name, "op": op.target} for op in users],
    }


def _value_lines(plan: Plan, piece: Piece, name: str) -> list[str]:
    graph = piece.graph
    value = graph.values[name]
    maker = graph.producer.get(name)
    source = f"{maker.target} {maker.source}".strip() if maker else "an input of the piece"
    readers = ", ".join(f"%{op.output.name} ({op.target})" for op in graph.users[name]) or "nobody"
    return [
        f"piece {piece.name}: %{name} : {value.dtype}{list(value.shape)}",
        f"  placement {format_placement(piece.placements[name])}, "
        f"{gib(plan.local_bytes(piece, name))} a rank",
        f"  made by {source}; {_kept(piece, name)}",
        f"  read by {readers}",
    ]


def _kept(piece: Piece, name: str) -> str:
    """What becomes of any value."""
    if name in {v.name for op in forward_ops(piece.graph) for v in op.outputs}:
        return _fate(piece, name)
    return "a value of the backward" if name in piece.graph.producer else "given"


def _fate(piece: Piece, name: str) -> str:
    """What becomes of a forward value until its backward."""
    if name in piece.offloaded:
        return "kept for backward in the host's memory"
    if name in piece.saved:
        return "saved for backward"
    if name in passing(piece.graph):
        return "not kept: exists in chunks, which backward computes again in passing"
    recomputed = phases_of(piece.graph, piece.saved).recomputed
    if piece.graph.producer[name].output.name in recomputed:
        return "not kept: computed again in backward, at the time that --segment shows"
    return "forward only: backward does not need it"


def outdated(plan: Plan, step_us: float, peak_bytes: float) -> str:
    """Return a warning where a plan's predicted numbers differ from what its decisions give."""
    found = {"predicted_step_us": step_us, "predicted_peak_bytes": peak_bytes}
    off = [
        f"{_cost(name, value)}, where this text takes {_cost(name, found[name])}"
        for name, value in plan.costs
        if name in found and abs(value / found[name] - 1) > 1e-6
    ]
    if not off:
        return ""
    return f"note: the plan was changed after it was predicted: it says {', '.join(off)}\n"
