"""What a plan says, as data for JSON: names end with the unit, and what is not known is None."""

from typing import Any

from meshwright.ir.mesh import AXIS_OF
from meshwright.ir.plan import Plan
from meshwright.ir.text.plan_text import plan_hash

from .explain import Costs, peaks


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
