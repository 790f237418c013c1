"""What separates two plans of one model, and what each difference is worth.

Decisions are changed one at a time from the first plan to the second, in the order of `DECISIONS`;
every step between is a whole plan, made from the two texts and priced by the simulator, so the
worths add up to the whole difference. A decision's worth depends on those changed before it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from meshwright.ir.errors import PlanError
from meshwright.ir.mesh import BATCH, PIPELINE
from meshwright.ir.plan import Piece, Plan, silent_stages

from ..hardware.cluster import Cluster
from ..pipeline.schedules import has_chunks, make_schedule, runs, stage_ranks
from ..remat.options import CHOSEN
from ..remat.rules import saved_values
from ..simulate.predict import Prediction, predict
from ..units import gib


@dataclass(frozen=True)
class Difference:
    """One decision: its words in both plans, the plan after it changed, and its prediction."""

    name: str
    before: str
    after: str
    prediction: Prediction


def diff(first: Plan, second: Plan, cluster: Cluster) -> str:
    """A table of the decisions that differ and what each is worth in step time and peak memory.

    Raises PlanError when the plans are not of the same model and batch.
    """
    check(first, second)
    start = predict(first, cluster)
    found = list(differences(first, second, cluster))
    if not found:
        return f"the plans decide the same; {start.step_us / 1e3:,.1f} ms a step both"
    end = found[-1].prediction
    lines = [
        f"{first.model} on {cluster.name}: {start.step_us / 1e3:,.1f} ms a step and "
        f"{gib(start.peak_bytes)} against {end.step_us / 1e3:,.1f} ms and {gib(end.peak_bytes)} "
        f"({end.step_us / start.step_us - 1:+.1%})",
        "  decision      first -> second                         ms a step         peak",
    ]
    before = start
    for item in found:
        lines.append(_line(item, before))
        before = item.prediction
    lines += ["", *_parts(start, end)]
    return "\n".join(lines)


def check(first: Plan, second: Plan) -> None:
    """Raise PlanError where two plans are not of the same model and batch."""
    for name in ("graph_hash", "dtype", "seq", "global_batch", "cluster"):
        one, two = getattr(first, name), getattr(second, name)
        if one != two:
            raise PlanError(
                f"the plans differ in {name.replace('_', ' ')}: {one} and {two}; compare plans of "
                "one model, batch and cluster"
            )


def _line(item: Difference, before: Prediction) -> str:
    us = item.prediction.step_us - before.step_us
    size = item.prediction.peak_bytes - before.peak_bytes
    sign = "-" if size < 0 else "+"
    words = f"{item.before} -> {item.after}"
    return f"  {item.name:<12}  {words:<36}  {us / 1e3:>+12,.1f}  {sign + gib(abs(size)):>12}"


def _parts(start: Prediction, end: Prediction) -> Iterator[str]:
    """Where the time of the busiest rank goes, first and second."""
    yield "  ms of the busiest rank         first       second"
    for name in ("compute", "waiting", "bubble", "after the last backward"):
        one, two = (_part(p, name) / 1e3 for p in (start, end))
        yield f"  {name:<24}{one:>12,.1f}{two:>13,.1f}"


def _part(prediction: Prediction, name: str) -> float:
    timeline = prediction.timeline
    rank = max(range(len(timeline.busy_us)), key=lambda r: timeline.busy_us[r])
    return {
        "compute": timeline.busy_us[rank],
        "waiting": timeline.exposed_us[rank],
        "bubble": timeline.bubble_us(rank),
        "after the last backward": timeline.step_us - max(timeline.finish_us),
    }[name]


def differences(first: Plan, second: Plan, cluster: Cluster) -> Iterator[Difference]:
    """The decisions that differ, each with the prediction of the plan that has it changed."""
    differing = [item for item in DECISIONS if item[1](first) != item[1](second)]
    if first.stage_ranks != second.stage_ranks:  # other cuts came with the mesh or the schedule
        differing = [item for item in differing if item[0] != "cuts"]
    plan, found = first, []
    for name, words, change in differing:
        if change is _offload and words(plan) == words(second):
            continue  # what is kept brought it with it
        plan = change(plan, second)
        found.append((name, words, plan))
    for name, words, changed in found:
        plan = second if name == found[-1][0] else changed
        yield Difference(name, words(first), words(second), predict(plan, cluster))


def _mesh(plan: Plan, target: Plan) -> Plan:
    """The target's mesh and placements under the plan's other decisions; with its micro-batches
    where the stages cannot take turns with the plan's."""
    rows = target.global_batch // target.mesh.count(*BATCH)
    micro_batch = max(n for n in range(1, plan.micro_batch + 1) if rows % n == 0)
    moved = _on_mesh(plan, target, micro_batch)
    if not any(_takes_turns(moved, p.schedule_name) for p in (plan, target)):
        moved = _on_mesh(plan, target, target.micro_batch)
    kept = moved if plan.recompute == CHOSEN else _saving(moved, plan.recompute)
    return _rescheduled(replace(kept, recompute=plan.recompute), target)


def _on_mesh(plan: Plan, target: Plan, micro_batch: int) -> Plan:
    return replace(
        plan,
        mesh=target.mesh,
        pieces=_staying(target),
        params=target.params,
        instances=target.instances,
        buckets=target.buckets,
        micro_batch=micro_batch,
        num_microbatches=target.global_batch // target.mesh.count(*BATCH) // micro_batch,
        stage_ranks=target.stage_ranks,
    )


def _micro_batch(plan: Plan, target: Plan) -> Plan:
    moved = replace(plan, micro_batch=target.micro_batch, num_microbatches=target.num_microbatches)
    return _rescheduled(moved, target)


def _saving(plan: Plan, rule: str) -> Plan:
    pieces = tuple(replace(p, saved=saved_values(p.graph, rule)) for p in plan.pieces)
    return replace(plan, pieces=pieces, recompute=rule)


def _recompute(plan: Plan, target: Plan) -> Plan:
    """The target's pieces, each instance with the values it keeps there."""
    at = [i.piece for i in target.instances]
    instances = tuple(replace(i, piece=p) for i, p in zip(plan.instances, at, strict=True))
    pieces = _staying(target)
    return replace(plan, pieces=pieces, instances=instances, recompute=target.recompute)


def _staying(plan: Plan) -> tuple[Piece, ...]:
    """Its pieces, nothing of them offloaded."""
    return tuple(replace(piece, offloaded=()) for piece in plan.pieces)


def _offload(plan: Plan, target: Plan) -> Plan:
    """The target's pieces where both keep the same; else what the plan has."""
    same = _staying(plan) == _staying(target)
    return replace(plan, pieces=target.pieces) if same else plan


def _offload_words(plan: Plan) -> str:
    away = {p.name: sum(plan.local_bytes(p, n) for n in p.offloaded) for p in plan.pieces}
    total = sum(away[i.piece] for i in plan.instances)
    return f"{gib(total)} on hosts" if total else "none"


def _recompute_words(plan: Plan) -> str:
    """Two choices of options differ in what they keep."""
    if plan.recompute != CHOSEN:
        return plan.recompute
    kept = {p.name: sum(plan.local_bytes(p, n) for n in p.saved) for p in plan.pieces}
    return f"{CHOSEN}, {gib(sum(kept[i.piece] for i in plan.instances))} saved"


def _zero(plan: Plan, target: Plan) -> Plan:
    return replace(plan, zero=target.zero)


def _precision(plan: Plan, target: Plan) -> Plan:
    return replace(plan, precision=target.precision, rounding=target.rounding)


def _reduce_dtype(plan: Plan, target: Plan) -> Plan:
    return replace(plan, reduce_dtype=target.reduce_dtype)


def _optimizer(plan: Plan, target: Plan) -> Plan:
    return replace(plan, optimizer=target.optimizer)


def _schedule(plan: Plan, target: Plan) -> Plan:
    """The target's schedule, and its cuts where they are for other stages."""
    same = plan.stage_ranks == target.stage_ranks
    return _scheduled(plan if same else _cuts(plan, target), target.schedule_name)


def _rescheduled(plan: Plan, target: Plan) -> Plan:
    """The plan's own schedule for new sizes or stages; the target's where it cannot be."""
    if _takes_turns(plan, plan.schedule_name):
        return _scheduled(plan, plan.schedule_name)
    return _schedule(plan, target)


def _takes_turns(plan: Plan, name: str) -> bool:
    """Whether a schedule can run the plan's stages where they are."""
    pp, count = plan.mesh.count(PIPELINE), plan.num_stages
    if not runs(name, pp, plan.num_microbatches) or not has_chunks(name, count // pp):
        return False
    return stage_ranks(name, pp, count // pp) == plan.stage_ranks


def _scheduled(plan: Plan, name: str) -> Plan:
    pp = plan.mesh.count(PIPELINE)
    silent = silent_stages(plan.instances, plan.buckets, plan.num_stages)
    schedule = make_schedule(name, pp, plan.num_microbatches, plan.num_stages // pp, silent)
    return replace(plan, schedule=schedule, schedule_name=name)


def _cuts(plan: Plan, target: Plan) -> Plan:
    return replace(
        plan,
        instances=target.instances,
        buckets=target.buckets,
        stage_ranks=target.stage_ranks,
    )


def _cut_words(plan: Plan) -> str:
    starts = [
        n for n, i in enumerate(plan.instances) if n and i.stage != plan.instances[n - 1].stage
    ]
    return ",".join(map(str, starts)) or "none"


def _schedule_words(plan: Plan) -> str:
    chunks = plan.num_stages // plan.mesh.count(PIPELINE)
    return plan.schedule_name if chunks == 1 else f"{plan.schedule_name}, {chunks} stages a rank"


Change = Callable[[Plan, Plan], Plan]
# Name, its words in a plan, and how a plan takes it over from another one.
DECISIONS: tuple[tuple[str, Callable[[Plan], str], Change], ...] = (
    ("mesh", lambda p: str(p.mesh), _mesh),
    ("micro-batch", lambda p: f"{p.num_microbatches} x {p.micro_batch} rows", _micro_batch),
    ("recompute", _recompute_words, _recompute),
    ("offload", _offload_words, _offload),
    ("ZeRO", lambda p: str(p.zero), _zero),
    ("precision", lambda p: f"{p.precision} {p.rounding}".strip(), _precision),
    ("reduce dtype", lambda p: p.reduce_dtype, _reduce_dtype),
    ("optimizer", lambda p: p.optimizer, _optimizer),
    ("schedule", _schedule_words, _schedule),
    ("cuts", _cut_words, _cuts),
)
