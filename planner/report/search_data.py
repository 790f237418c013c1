"""What a search and a comparison of plans say, as data for JSON, in the terms of data.py."""

from typing import Any

from meshwright.ir.plan import Plan

from ..hardware.cluster import Cluster
from ..search.search import Found
from ..simulate.predict import predict
from .diff import check, differences
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
