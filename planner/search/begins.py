"""Other cuts of a candidate to begin a descent with.

A descent (descent.py) ends where no run of cuts that moves makes the longest path shorter; where
that is depends on its begin. Stages of equal time are one begin, and these are near it.
"""

import random
from collections.abc import Iterator

from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .cutting import rounded
from .fitting import Fitted, descended, fastest_of, fitted_to

# A stage of a begin takes as much longer or shorter than an equal one, as a share.
APART = 0.06


def begun_anew(
    costs: CandidateCosts, c: Candidate, limit_bytes: float, count: int
) -> tuple[Fitted, ...]:
    """Return the plans found by descents from `count` different cuts, the fastest first.

    Of plans with the same step, the first found is returned.
    """
    found: dict[float, Fitted] = {}
    for starts in dict.fromkeys(_begins(costs, c, count)):
        begin = fitted_to(costs, c, starts, limit_bytes)
        best = begin and fastest_of(descended(costs, begin, limit_bytes))
        if best is not None:
            found.setdefault(best.timeline.step_us, best)
    return tuple(found[us] for us in sorted(found))


def _begins(costs: CandidateCosts, c: Candidate, count: int) -> Iterator[tuple[int, ...]]:
    """Yield cuts into stages of about equal time, the same ones every time."""
    times, draw = costs.units_of(c).least_compute_us, random.Random(0)
    each = sum(times) / c.num_stages
    for _ in range(count):
        shares = [1 + draw.uniform(-APART, APART) for _ in range(c.num_stages)]
        yield rounded(times, [each * share for share in shares])
