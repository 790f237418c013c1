"""The report of a search, in text: the decision, where time and memory go, who lost and why."""

from meshwright.ir.plan import Plan

from ..budget import SearchBudget
from ..cost.piece_cost import PieceWork
from ..hardware.cluster import Cluster
from ..hardware.usable import communicators, reserved_bytes, usable_bytes, usable_host_bytes
from ..search.incumbent import Loser
from ..search.search import Found
from ..simulate.predict import Prediction
from ..units import counted, gib
from .coverage import coverage
from .explain import summary

RUNNERS_UP = 12


def search_report(plan: Plan, found: Found, prediction: Prediction) -> str:
    """Everything `plan` has to say about why this plan; the search's own part comes last."""
    cluster = prediction.cluster
    limit = usable_bytes(cluster)
    parts = [
        [_decision(plan, found, prediction), "", summary(plan)],
        ["us of one micro-batch by segment, forward + backward", *_segments(plan, prediction)],
        [f"ranks (device {gib(cluster.device.memory_bytes)}, usable {gib(limit)})",
         *_ranks(plan, prediction)],
        [f"memory at the peak of rank {prediction.peak_rank}", *_memory(plan, prediction)],
        ["runners-up: why each lost, or was passed over", *_losers(found)],
        ["coverage", *coverage(plan, cluster)],
        ["bound", *_bound(found)],
    ]  # fmt: skip
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _decision(plan: Plan, found: Found, prediction: Prediction) -> str:
    costs, mesh = dict(plan.costs), plan.mesh
    step = prediction.step_us / 1e6
    return (
        f"{plan.model} on {plan.cluster}: mesh {mesh}, "
        f"{counted(plan.num_microbatches, 'micro-batch')} of {counted(plan.micro_batch, 'row')}, "
        f"ZeRO {plan.zero}, recompute {plan.recompute}, "
        f"{plan.schedule_name}. Predicted {step:.4g} s a step, "
        f"{costs['predicted_tokens_per_s']:,.0f} tokens/s, "
        f"{gib(prediction.peak_bytes)} at the peak; at most {found.gap:.1%} above the best of "
        f"{found.num_candidates} combinations."
    )


def _segments(plan: Plan, prediction: Prediction) -> list[str]:
    lines = [
        "  piece                uses    matmul attention pointwise    tp links    again     kept"
    ]
    if offloads := any(piece.offloaded for piece in plan.pieces):
        lines[0] += "    on host"
    works = {u.name: u.work for units in prediction.model.stages for u in units}
    for piece in plan.pieces:
        names = [i.name for i in plan.instances if i.piece == piece.name]
        work = works[names[0]]
        times = "".join(f"{us:11,.0f}" for us in (*_us_by_kind(work), work.again_us))
        away = f"{gib(work.away_bytes):>11}" if offloads else ""
        lines.append(f"  {piece.name:<20} {len(names):>4}{times}{gib(work.kept_bytes):>11}{away}")
    return lines


def _us_by_kind(work: PieceWork) -> list[float]:
    phases = work.forward, work.backward
    kinds = ("matmul", "attention", "pointwise", "collective")
    return [sum(getattr(phase, f"{kind}_us") for phase in phases) for kind in kinds]


def _ranks(plan: Plan, prediction: Prediction) -> list[str]:
    lines = ["  rank  segments      busy ms  waiting ms  bubble ms  at the end        peak  stages"]
    timeline, stages = prediction.timeline, prediction.model.stages
    for rank in range(len(plan.schedule)):
        mine = plan.stages_of(rank)
        parts = [timeline.busy_us[rank], timeline.exposed_us[rank], timeline.bubble_us(rank)]
        times = [part / 1e3 for part in (*parts, timeline.step_us - sum(parts))]
        lines.append(
            f"  {rank:>4}  {sum(len(stages[s]) for s in mine):>8}"
            f"  {times[0]:>11,.1f}{times[1]:>12,.1f}{max(0.0, times[2]):>11,.1f}"
            f"{max(0.0, times[3]):>12,.1f}"
            f"  {gib(prediction.peaks[rank].total_bytes):>10}  {', '.join(map(str, mine))}"
        )
    return _thinned(lines)


def _thinned(lines: list[str]) -> list[str]:
    """Long tables keep their ends."""
    if len(lines) <= 20:
        return lines
    return [*lines[:10], f"  ... {len(lines) - 18} more", *lines[-8:]]


def _memory(plan: Plan, prediction: Prediction) -> list[str]:
    peak = prediction.peaks[prediction.peak_rank]
    rows = [(kind, size) for kind, size in peak.bytes_by_kind if size]
    if away := prediction.host_bytes:
        most = gib(usable_host_bytes(prediction.cluster))
        rows.append((f"host memory, of {most}", away))
    lines = [f"  in {peak.where}"] + [f"  {kind:<20} {gib(size):>12}" for kind, size in rows]
    return [*lines, *_reserved(plan, prediction.cluster)]


def _reserved(plan: Plan, cluster: Cluster) -> list[str]:
    """Return what is reserved of a device, and for what, where that is known."""
    device, reserved = cluster.device, reserved_bytes(cluster)
    count = communicators(plan.mesh)
    known = {
        "CUDA context": device.context_bytes,
        f"{count} communicators": count * device.communicator_bytes,
    }
    rows = [(kind, float(size)) for kind, size in known.items() if size]
    if not rows:
        return []
    rows.append(("fragments and errors", reserved - sum(s for _, s in rows)))
    lines = [f"beside it, {gib(reserved)} that no plan may use"]
    return lines + [f"  {kind:<20} {gib(size):>12}" for kind, size in rows]


def runners_up(found: Found) -> list[Loser]:
    """Return what came nearest to the best, the fastest first."""

    def order(loser: Loser) -> tuple[float, float]:
        seen = loser.bound_us if loser.fits is None else float("inf")
        return loser.step_us or seen, loser.bound_us

    return sorted(found.losers, key=order)[:RUNNERS_UP]


def _losers(found: Found) -> list[str]:
    rows = runners_up(found)
    lines = [f"  {loser.candidate}: {loser.reason(found.best)}" for loser in rows]
    won = found.best.timeline.step_us
    open_ = [r for r in rows if r.step_us is None and r.fits is None and r.bound_us < won]
    if open_ and found.budget.effort != "best":
        lines.append(
            f"  {len(open_)} of these were not simulated and may be faster by what they say; a "
            f"greater --effort than {found.budget.effort} simulates them"
        )
    return lines or ["  none: the pins leave one combination"]


def told_gap(found: Found) -> str:
    """Return what the gap is to, beside the nearest combination that was simulated."""
    said = "The gap is to what a combination takes at the least, not to one that was found."
    steps = [loser.step_us for loser in found.losers if loser.step_us is not None]
    if not steps:
        return said
    behind = min(steps) / found.best.timeline.step_us - 1
    return f"{said} The nearest one that was simulated takes {behind:.1%} more than the plan."


def _placements(found: Found) -> str:
    others = found.num_placements - 1
    if not others:
        return "  placements: optimal per segment for each tp and cp at one price per byte"
    return (
        f"  placements: optimal per segment for each tp and cp at one price per byte, and "
        f"{counted(others, 'other')} (price, order or cut of the sequence) of meshes near the best"
    )


def _above(found: Found) -> str:
    if found.stopped or found.num_simulated >= found.budget.max_simulated:
        return "by what the gap says"
    worth = found.budget.worth
    return f"above the best, or less than {worth:.1%} below it" if worth else "above the best"


def _words(budget: SearchBudget) -> str:
    if budget.effort == "best":
        return "the full search; --effort normal and fast take less time"
    return f"passes over what could gain less than {budget.worth:.1%}; --effort best does not"


def _bound(found: Found) -> list[str]:
    best = found.best.timeline.step_us
    budget = found.budget
    return [
        *([f"  stopped by Ctrl-C at: {found.stopped}"] if found.stopped else []),
        f"  effort {budget.effort}: {_words(budget)}",
        f"  no combination of these placements takes less than {found.bound_us / 1e3:,.1f} ms; "
        f"this one {best / 1e3:,.1f} ms, a gap of {found.gap:.2%}",
        f"  {told_gap(found)}",
        f"  {found.num_candidates} combinations, {found.num_simulated} simulated, "
        f"{found.num_unfit} do not fit, the rest are bounded {_above(found)}",
        "  recompute: over the options of each segment (kept bytes against time)",
        f"{_placements(found)}; the bound is over these, --pin cp, cp_order, shard_sequence, "
        "shard_weights or price asks for others",
    ]
