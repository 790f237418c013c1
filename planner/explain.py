"""What a plan decided, in text: a summary, the whole report, one value."""

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.errors import PlanError
from meshwright.ir.graph import Op
from meshwright.ir.placement import format_placement
from meshwright.ir.plan import Piece, Plan
from meshwright.ir.plan_text import plan_hash
from meshwright.ir.sizes import evaluate, num_elements

from .recompute import forward_ops
from .schedules import in_flight

OPTIMIZER_MOMENTS = 2  # AdamW keeps two tensors of a parameter's size


def memory_by_kind(plan: Plan, stage: int) -> dict[str, int]:
    """Bytes of one rank of a stage at its peak: what the program allocates and keeps.

    Activations are the saved values and piece inputs of the micro-batches in flight; one piece's
    temporaries are not in it.
    """
    dp = plan.mesh.size("dp")
    numel = sum(b.numel for b in plan.buckets if stage in b.stages)
    size = ITEM_BYTES[plan.dtype]
    largest = max((b.numel for b in plan.buckets if stage in b.stages), default=0)
    cut = [1 if plan.zero < level else dp for level in (3, 2, 1)]
    held = in_flight(plan.schedule[stage])
    per_batch = sum(
        _activation_bytes(plan, plan.piece(i.piece)) for i in plan.instances if i.stage == stage
    )
    found = {
        "parameters": numel * size // cut[0],
        "gradients": numel * size // cut[1],
        "optimizer": OPTIMIZER_MOMENTS * numel * size // cut[2],
        "activations": held * per_batch,
    }
    if dp > 1 and plan.zero == 3:
        found["gathered parameters"] = 2 * largest * size
    if dp > 1 and plan.zero >= 2:
        found["gradient buffers"] = 2 * largest * size
    return found


def _activation_bytes(plan: Plan, piece: Piece) -> int:
    inputs = piece.graph.inputs_of("activation")
    names = [*piece.saved, *(i.value.name for i in inputs)]
    return sum(plan.local_bytes(piece, n) for n in names)


def summary(plan: Plan) -> str:
    """The decision in a few lines."""
    mesh = plan.mesh
    memory = max(sum(memory_by_kind(plan, s).values()) for s in range(plan.num_stages))
    params = sum(evaluate(num_elements(p.shape), {}) for p in plan.params)
    lines = [
        f"plan {plan_hash(plan)}: {plan.model}, {params:,} parameters, on {plan.cluster}",
        f"  mesh {mesh}; {plan.global_batch} rows of {plan.seq} tokens a step as "
        f"{plan.num_microbatches} micro-batches of {plan.micro_batch} x dp {mesh.size('dp')}",
        f"  ZeRO {plan.zero}; recompute {plan.recompute}; schedule {plan.schedule_name}; "
        f"{len(plan.instances)} segments of {len(plan.pieces)} kinds",
        f"  memory of the fullest rank without temporaries: {gib(memory)}",
    ]
    lines += [f"  {name}: {value:,.6g}" for name, value in plan.costs]
    lines += [f"  note: {c}" for c in plan.coverage]
    return "\n".join(lines)


def gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"


def report(plan: Plan) -> str:
    """Summary, memory by stage and kind, and one table row per piece and per stage."""
    lines = [summary(plan), "", "memory of one rank, without temporaries"]
    for stage in range(plan.num_stages):
        kinds = memory_by_kind(plan, stage)
        parts = ", ".join(f"{name} {gib(size)}" for name, size in kinds.items())
        lines.append(f"  stage {stage}: {gib(sum(kinds.values()))} ({parts})")
    lines += ["", "stages"]
    for stage in range(plan.num_stages):
        mine = [i for i in plan.instances if i.stage == stage]
        held = in_flight(plan.schedule[stage])
        lines.append(
            f"  stage {stage}: {len(mine)} segments, {mine[0].name} to {mine[-1].name}; "
            f"{held} micro-batches in flight"
        )
    lines += ["", "pieces (bytes are of one micro-batch on one rank)"]
    for piece in plan.pieces:
        lines += _piece_lines(plan, piece)
    return "\n".join(lines)


def _piece_lines(plan: Plan, piece: Piece) -> list[str]:
    uses = sum(i.piece == piece.name for i in plan.instances)
    saved = [(plan.local_bytes(piece, n), n) for n in piece.saved]
    total = sum(size for size, _ in saved)
    moves = [op for op in piece.graph.ops if op.target == "redistribute"]
    lines = [
        f"  {piece.name} x{uses}: saves {len(saved)} values, {gib(total)}; "
        f"{len(moves)} redistributions"
    ]
    for item in piece.graph.inputs_of("param"):
        at = format_placement(piece.placements[item.value.name])
        lines.append(f"    weight %{item.value.name} @ {at}")
    for op in moves:
        lines.append(f"    {op.attr('kind')} %{op.inputs[0]} ({gib(_moved(plan, piece, op))})")
    for size, name in sorted(saved, reverse=True):
        lines.append(f"    saved %{name} {gib(size)}")
    return lines


def _moved(plan: Plan, piece: Piece, op: Op) -> int:
    return max(plan.local_bytes(piece, n) for n in (op.inputs[0], op.output.name))


def explain_value(plan: Plan, name: str) -> str:
    """Where a value lies, whether it is kept, who makes and reads it, per piece that has it."""
    name = name.removeprefix("%")
    holders = [p for p in plan.pieces if name in p.graph.values]
    if not holders:
        known = sorted({n for p in plan.pieces for n in p.graph.values})
        import difflib

        near = difflib.get_close_matches(name, known, 3)
        raise PlanError(
            f"no value %{name} among the plan's {len(known)}; near: {', '.join(near) or 'none'}"
        )
    return "\n".join(line for piece in holders for line in _value_lines(plan, piece, name))


def _value_lines(plan: Plan, piece: Piece, name: str) -> list[str]:
    graph = piece.graph
    value = graph.values[name]
    maker = graph.producer.get(name)
    source = f"{maker.target} {maker.source}".strip() if maker else "an input of the piece"
    readers = ", ".join(f"%{op.output.name} ({op.target})" for op in graph.users[name]) or "nobody"
    forward = {v.name for op in forward_ops(graph) for v in op.outputs}
    kept = (
        "saved for backward"
        if name in piece.saved
        else ("forward only, or computed again in backward" if name in forward else "not saved")
    )
    return [
        f"piece {piece.name}: %{name} : {value.dtype}{list(value.shape)}",
        f"  placement {format_placement(piece.placements[name])}, "
        f"{gib(plan.local_bytes(piece, name))} a rank",
        f"  made by {source}; {kept}",
        f"  read by {readers}",
    ]
