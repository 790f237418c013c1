"""What a search and a comparison of plans say, as data for JSON, in the terms of data.py."""

from typing import Any

from meshwright.ir.plan import Plan

from ..hardware.cluster import Cluster
from ..hardware.usable import usable_bytes
from ..search.search import Found
from ..simulate.predict import Prediction, predict
from .diff import away, check, compared
from .report import runners_up


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


def diff_facts(first: Plan, second: Plan, clusters: tuple[Cluster, Cluster]) -> dict[str, Any]:
    """Return what `diff` prints. Raises PlanError when plans are not of one model and batch."""
    check(first, second)
    one, two = clusters
    return {
        "first": _plan_facts(first, predict(first, one)),
        "second": _plan_facts(second, predict(second, two)),
        "decisions": [
            {
                "name": item.name,
                "first": item.before,
                "second": item.after,
                "step_time_s": item.prediction and item.prediction.step_us / 1e6,
                "peak_bytes": item.prediction and item.prediction.peak_bytes,
            }
            for item in compared(first, second, clusters)
        ],
    }


def _plan_facts(plan: Plan, prediction: Prediction) -> dict[str, Any]:
    cluster = prediction.cluster
    return {
        "cluster": cluster.name,
        "devices": cluster.num_devices,
        "step_time_s": prediction.step_us / 1e6,
        "tokens_per_s": plan.global_batch * plan.seq / prediction.step_us * 1e6,
        "peak_bytes": prediction.peak_bytes,
        "usable_bytes": usable_bytes(cluster),
        "offloaded_bytes": away(plan),
    }
