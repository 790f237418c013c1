"""The decision in a paragraph that can be read aloud, and what more of each resource would buy."""

from meshwright.ir.mesh import CONTEXT, DATA, PIPELINE, REPLICA, TENSOR
from meshwright.ir.plan import Plan

from ..hardware.cluster import Cluster
from ..hardware.usable import usable_bytes
from ..report.report import runners_up
from ..report.shares import shares_of
from ..search.search import Found
from ..simulate.predict import Prediction
from ..units import duration, gib
from ..what_if.ask import priced
from ..what_if.edits import Point, parse_sweep, with_figures
from ..what_if.prices import Prices

_ROLES = {
    PIPELINE: "stages of a pipeline",
    REPLICA: "copies of the sharded storage",
    DATA: "data-parallel ranks",
    CONTEXT: "parts of the sequence",
    TENSOR: "tensor-parallel ranks",
}
MORE = "x1.1"


def decision(plan: Plan, found: Found, prediction: Prediction) -> str:
    """Return what was decided, why, and what limits it, in sentences."""
    return " ".join(
        (
            _layout(plan),
            _numbers(plan, prediction),
            _limit(plan, prediction),
            _memory(prediction),
            _others(found),
        )
    )


def _layout(plan: Plan) -> str:
    sizes = {role: plan.mesh.count(role) for role in _ROLES}
    cut = [f"{sizes[role]} {words}" for role, words in _ROLES.items() if sizes[role] > 1]
    mesh = " x ".join(cut) or "one device, nothing cut"
    zero = f", ZeRO {plan.zero}" if plan.zero else ""
    order = f", scheduled as {plan.schedule_name}" if sizes[PIPELINE] > 1 else ""
    return (
        f"{plan.model} on {plan.cluster}: {mesh}{zero}. A step of {plan.global_batch:,} rows of "
        f"{plan.seq:,} tokens runs on each data rank as {_passes(plan)}{order}."
    )


def _passes(plan: Plan) -> str:
    count, rows = plan.num_microbatches, plan.micro_batch
    return f"{count} micro-batches of {rows} rows" if count > 1 else f"one micro-batch of {rows}"


def _numbers(plan: Plan, prediction: Prediction) -> str:
    rate = dict(plan.costs)["predicted_tokens_per_s"]
    return f"It is predicted to take {duration(prediction.step_us)}, {rate:,.0f} tokens a second."


def _limit(plan: Plan, prediction: Prediction) -> str:
    found = shares_of(prediction.model, prediction.timeline, prediction.cluster, plan.mesh)
    (first, share), *rest = found
    others = ", ".join(f"{kind} {part:.0%}" for kind, part in rest[:3] if part >= 0.01)
    return f"{first.capitalize()} takes {share:.0%} of it" + (f"; {others}." if others else ".")


def _memory(prediction: Prediction) -> str:
    peak, most = prediction.peak_bytes, usable_bytes(prediction.cluster)
    kinds = sorted(prediction.peaks[prediction.peak_rank].bytes_by_kind, key=lambda k: -k[1])[:2]
    largest = " and ".join(f"{kind} {gib(size)}" for kind, size in kinds if size)
    return f"The fullest rank holds {gib(peak)} of {gib(most)} usable, most of it {largest}."


def _others(found: Found) -> str:
    rows = runners_up(found)
    if not rows:
        return "The pins leave one combination."
    return (
        f"Of {found.num_candidates} combinations the nearest other one is {rows[0].candidate}: "
        f"{rows[0].reason(found.best)}."
    )


def gains(plan: Plan, prediction: Prediction) -> list[tuple[str, float]]:
    """Return the share of the step that 10% more of each resource saves, the largest first.

    The plan stays as it is: a search anew may save more.
    """
    names = _resources(prediction.cluster)
    points = [_with_more(plan, prediction.cluster, name) for name in names]
    answers = zip(names.values(), priced(plan, points, Prices(())), strict=True)
    found = [(words, a.step.step_us) for words, a in answers if a.step is not None]
    saved = [(words, 1 - step_us / prediction.step_us) for words, step_us in found]
    return sorted(saved, key=lambda row: -row[1])


def _resources(cluster: Cluster) -> dict[str, str]:
    """Return names of sweeps, and what they are in words."""
    return {
        "device.matmul": "matmul and attention rates",
        "device.bandwidth": "memory bandwidth",
        "host.bandwidth": "link to the host",
        **{f"link.{v.name}.bandwidth": f"bandwidth of {v.name}" for v in cluster.levels},
    }


def _with_more(plan: Plan, cluster: Cluster, name: str) -> Point:
    changed = with_figures(cluster, [parse_sweep(f"{name}={MORE}")])
    return Point(changed, plan.seq, plan.global_batch)
