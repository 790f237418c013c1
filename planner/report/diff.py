"""What separates two plans of one model, and what each difference is worth.

Decisions are changed one at a time from the first plan to the second, in the order of `DECISIONS`;
every step between is a whole plan, made from the two texts and priced by the simulator, so the
worths add up to the whole difference. A decision's worth depends on those changed before it.
Plans of two clusters of as many devices begin with the cluster: the first plan, priced on the
second one. Where the clusters have other numbers of devices no plan lies between, and decisions
stand without worths.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TypeAlias

from meshwright.ir.errors import PlanError
from meshwright.ir.mesh import BATCH, PIPELINE
from meshwright.ir.ops.registry import definition
from meshwright.ir.plan import Piece, Plan, silent_stages

from ..hardware.cluster import Cluster
from ..hardware.usable import usable_bytes
from ..pipeline.schedules import has_chunks, make_schedule, runs, stage_ranks
from ..remat.options import CHOSEN
from ..remat.rules import saved_values
from ..simulate.predict import Prediction, predict
from ..units import gib

_MOST_VALUES = 6  # on hosts, that are named


@dataclass(frozen=True)
class Difference:
    """One decision: its words in both plans, the plan after it changed, and its prediction; None
    where no plan lies between."""

    name: str
    before: str
    after: str
    prediction: Prediction | None


def diff(first: Plan, second: Plan, clusters: tuple[Cluster, Cluster]) -> str:
    """A table of the decisions that differ and what each is worth in step time and peak memory.

    clusters: of the first plan and of the second. Raises PlanError when the plans are not of the
    same model and batch.
    """
    check(first, second)
    one, two = clusters
    start, end = predict(first, one), predict(second, two)
    found = list(compared(first, second, clusters))
    if not found:
        return f"the plans decide the same; {start.step_us / 1e3:,.1f} ms a step both"
    where = "" if one.name == two.name else f" on {two.name}"
    lines = [
        f"{first.model} on {one.name}: {start.step_us / 1e3:,.1f} ms a step and "
        f"{gib(start.peak_bytes)} against {end.step_us / 1e3:,.1f} ms and {gib(end.peak_bytes)}"
        f"{where} ({end.step_us / start.step_us - 1:+.1%})",
        "  decision      first -> second                         ms a step         peak",
    ]
    before = start
    for item in found:
        lines.append(_line(item, before))
        before = item.prediction or before
    lines += [*_on_hosts(first, second), "", *_parts(start, end)]
    lines += _of_clusters(first, (start, end)) if where else []
    return "\n".join(lines)


def compared(first: Plan, second: Plan, clusters: tuple[Cluster, Cluster]) -> Iterator[Difference]:
    """Differences, the clusters first: with worths where both have as many devices."""
    one, two = clusters
    if one.num_devices == two.num_devices:
        if one != two:
            yield Difference("cluster", one.name, two.name, predict(first, two))
        yield from differences(first, second, two)
        return
    yield Difference("cluster", one.name, two.name, None)
    for name, words, _ in _differing(first, second):
        yield Difference(name, words(first), words(second), None)


def check(first: Plan, second: Plan) -> None:
    """Raise PlanError where two plans are not of the same model and batch."""
    for name in ("graph_hash", "dtype", "seq", "global_batch"):
        one, two = getattr(first, name), getattr(second, name)
        if one != two:
            raise PlanError(
                f"the plans differ in {name.replace('_', ' ')}: {one} and {two}; compare plans of "
                "one model and batch"
            )


def _line(item: Difference, before: Prediction) -> str:
    words = f"{item.before} -> {item.after}"
    if item.prediction is None:
        return f"  {item.name:<12}  {words}"
    us = item.prediction.step_us - before.step_us
    size = item.prediction.peak_bytes - before.peak_bytes
    sign = "-" if size < 0 else "+"
    return f"  {item.name:<12}  {words:<36}  {us / 1e3:>+12,.1f}  {sign + gib(abs(size)):>12}"


def _on_hosts(first: Plan, second: Plan) -> Iterator[str]:
    """What of each plan waits in host memory, where anything does."""
    each = [away(plan) for plan in (first, second)]
    if not any(each):
        return
    yield ""
    for which, sizes in zip(("first", "second"), each, strict=True):
        most = sorted(sizes.items(), key=lambda item: -item[1])
        said = [f"{name} {gib(size)}" for name, size in most[:_MOST_VALUES]]
        said += [f"{len(most) - len(said)} more values"] if len(most) > len(said) else []
        yield f"  in host memory, {which:<6}  {', '.join(said) or 'nothing'}"


def _of_clusters(plan: Plan, predictions: tuple[Prediction, Prediction]) -> Iterator[str]:
    """What two clusters compare by: devices, the rate of each, and what of its memory is used."""
    tokens = plan.global_batch * plan.seq
    yield "  clusters                       first       second"
    for name, value in {
        "devices": lambda p: f"{p.cluster.num_devices:,}",
        "tokens/s": lambda p: f"{tokens / p.step_us * 1e6:,.0f}",
        "tokens/s a device": lambda p: f"{tokens / p.step_us * 1e6 / p.cluster.num_devices:,.0f}",
        "peak of usable memory": lambda p: f"{p.peak_bytes / usable_bytes(p.cluster):.1%}",
    }.items():
        one, two = map(value, predictions)
        yield f"  {name:<24}{one:>12}{two:>13}"


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
        "after the last backward": max(0.0, timeline.step_us - max(timeline.finish_us)),
    }[name]


def differences(first: Plan, second: Plan, cluster: Cluster) -> Iterator[Difference]:
    """The decisions that differ, each with the prediction of the plan that has it changed."""
    plan, found = first, []
    for name, words, change in _differing(first, second):
        plan = change(plan, second)
        found.append((name, words, plan))
    for name, words, changed in found:
        plan = second if name == found[-1][0] else changed
        yield Difference(name, words(first), words(second), predict(plan, cluster))


def _differing(first: Plan, second: Plan) -> "list[Decision]":
    """The decisions that differ in the order of their change: what no longer waits on hosts comes
    back before what is kept changes."""
    found = [item for item in DECISIONS if item[1](first) != item[1](second)]
    if first.mesh != second.mesh:  # other placements came with it
        found = [item for item in found if item[0] != "placements"]
    if first.stage_ranks != second.stage_ranks:  # other cuts came with the mesh or the schedule
        found = [item for item in found if item[0] != "cuts"]
    return found if away(second) else sorted(found, key=lambda item: item[2] is not _offload)


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


def _placements(plan: Plan, target: Plan) -> Plan:
    """The target's placements, and what it keeps where the plan's choice is not by a rule; and its
    cuts where parameters are stored by stages that the plan does not have."""
    moved = replace(_recompute(plan, target), params=target.params)
    if [i.stage for i in plan.instances] == [i.stage for i in target.instances]:
        moved = replace(moved, buckets=target.buckets)
    else:
        moved = _rescheduled(_cuts(moved, target), target)
    kept = moved if plan.recompute == CHOSEN else _saving(moved, plan.recompute)
    return replace(kept, recompute=plan.recompute)


def _placement_words(plan: Plan) -> str:
    """Mirrored shards, the collectives of a micro-batch, and the beginning of a hash: of how the
    values of each instance are placed, whatever is kept of them."""
    placed = {p.name: repr(sorted(p.placements.items())) for p in plan.pieces}
    text = "\n".join(placed[i.piece] for i in plan.instances)
    lowered = {p.name: sum(definition(op).collective for op in p.graph.ops) for p in plan.pieces}
    count = sum(lowered[i.piece] for i in plan.instances)
    mirrored = "mirrored, " if "mirrored=True" in text else ""
    return f"{mirrored}{count} collectives ({sha256(text.encode()).hexdigest()[:6]})"


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
    """The target's pieces where both keep the same; else what the plan has, all of it on devices
    where the target has nothing on hosts."""
    if not away(target):
        return replace(plan, pieces=_staying(plan))
    same = _staying(plan) == _staying(target)
    return replace(plan, pieces=target.pieces) if same else plan


def away(plan: Plan) -> dict[str, float]:
    """Return bytes of a micro-batch that wait in host memory over all instances, by value."""
    sizes: dict[str, float] = {}
    for piece in map(plan.piece, (i.piece for i in plan.instances)):
        for name in piece.offloaded:
            sizes[name] = sizes.get(name, 0.0) + plan.local_bytes(piece, name)
    return sizes


def _offload_words(plan: Plan) -> str:
    total = sum(away(plan).values())
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
Decision: TypeAlias = tuple[str, Callable[[Plan], str], Change]
# Name, its words in a plan, and how a plan takes it over from another one.
DECISIONS: tuple[Decision, ...] = (
    ("mesh", lambda p: str(p.mesh), _mesh),
    ("placements", _placement_words, _placements),
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
