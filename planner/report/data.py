"""What reports say, as data for JSON: names end with the unit, and what is not known is None."""

from typing import Any

from meshwright.ir.mesh import AXIS_OF
from meshwright.ir.plan import Plan
from meshwright.ir.text.plan_text import plan_hash

from ..hardware.cluster import Cluster
from ..search.search import Found
from ..simulate.predict import predict
from .diff import check, differences
from .explain import Costs, peaks
from .report import runners_up


def decision(plan: Plan, costs: Costs | None = None) -> dict[str, Any]:
    """Return what a plan decided and what is predicted of it. costs: in place of its own."""
    said, every = dict(costs or plan.costs), peaks(plan)
    fullest = max(every, key=lambda peak: peak.total_bytes)
    return {
        "hash": plan_hash(plan),
        "model": plan.model,
        "cluster": plan.cluster,
        "seq_tokens": plan.seq,
        "global_batch_rows": plan.global_batch,
        "mesh": {name: plan.mesh.count(role) for role, name in AXIS_OF.items()},
        "micro_batch_rows": plan.micro_batch,
        "micro_batches": plan.num_microbatches,
        "schedule": plan.schedule_name,
        "stage_segments": _segments(plan),
        "recompute": plan.recompute,
        "storage": _storage(plan),
        "step_time_s": said["predicted_step_us"] / 1e6,
        "tokens_per_s": said["predicted_tokens_per_s"],
        "matmul_rate_share": said["predicted_matmul_rate_share"],
        "host_bytes": said.get("predicted_host_bytes", 0.0),
        "peak_bytes": fullest.total_bytes,
        "memory_bytes": dict(fullest.bytes_by_kind),
        "notes": list(plan.coverage),
    }


def _storage(plan: Plan) -> dict[str, Any]:
    return {
        "zero": plan.zero,
        "dtype": plan.dtype,
        "precision": plan.precision,
        "rounding": plan.rounding or None,
        "reduce_dtype": plan.reduce_dtype,
        "optimizer": plan.optimizer,
    }


def _segments(plan: Plan) -> list[int]:
    """How many segments each stage holds."""
    return [sum(i.stage == stage for i in plan.instances) for stage in range(plan.num_stages)]


def ranks(plan: Plan) -> list[dict[str, Any]]:
    """Return the peak of every pp rank, and where it occurs."""
    return [
        {
            "peak_bytes": peak.total_bytes,
            "where": peak.where,
            "memory_bytes": dict(peak.bytes_by_kind),
        }
        for peak in peaks(plan)
    ]


def search_facts(found: Found) -> dict[str, Any]:
    """Return how far a search looked and what it passed over."""
    return {
        "effort": found.budget.effort,
        "stopped_at": found.stopped or None,
        "bound_s": found.bound_us / 1e6,
        "gap": found.gap,
        "combinations": found.num_candidates,
        "simulated": found.num_simulated,
        "unfit": found.num_unfit,
        "runners_up": [
            {
                "plan": str(loser.candidate),
                "step_time_s": None if loser.step_us is None else loser.step_us / 1e6,
                "bound_s": loser.bound_us / 1e6 if loser.bound_us < float("inf") else None,
                "fits": loser.fits,
                "why": loser.reason(found.best),
            }
            for loser in runners_up(found)
        ],
    }


def diff_facts(first: Plan, second: Plan, cluster: Cluster) -> dict[str, Any]:
    """Return what `diff` prints. Raises PlanError when plans are not of one model and batch."""
    check(first, second)
    start, end = predict(first, cluster), predict(second, cluster)
    return {
        "cluster": cluster.name,
        "first": {"step_time_s": start.step_us / 1e6, "peak_bytes": start.peak_bytes},
        "second": {"step_time_s": end.step_us / 1e6, "peak_bytes": end.peak_bytes},
        "decisions": [
            {
                "name": item.name,
                "first": item.before,
                "second": item.after,
                "step_time_s": item.prediction.step_us / 1e6,
                "peak_bytes": item.prediction.peak_bytes,
            }
            for item in differences(first, second, cluster)
        ],
    }
