"""Bounds that limit the gap, made again with more effort.

A search that waits for something else meanwhile has them made by a process beside it: what that
found is known when it asks.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

from ..bounds.lp import LpBound
from .forked import beside
from .incumbent import Incumbent


def tighten(incumbents: Sequence[Incumbent], best_us: float) -> None:
    """Bound the candidates that limit the gap again, the lowest bound first, while that helps.
    best_us: the best step of all."""
    for _ in range(incumbents[0].costs.problem.budget.max_thorough):
        least = min(incumbents, key=lambda one: one.least_us)
        if not _limits_gap(least, best_us) or not least.tighten_least(best_us):
            return


@contextmanager
def tightened_beside(
    incumbents: Sequence[Incumbent], best_us: float, alone: bool
) -> Iterator[None]:
    """Make the LP bounds that `tighten` will ask for while what is inside runs, if that finds
    nothing better. alone: do not, as there are no other processes."""

    def made() -> dict[Hashable, LpBound]:
        for one in incumbents:
            one.progress = lambda _: None
        known = set(bounds)
        tighten(incumbents, best_us)
        return {key: found for key, found in bounds.items() if key not in known}

    bounds = incumbents[0].costs.lp_bounds  # one table, whatever the placements
    wanted = not alone and any(_limits_gap(one, best_us) for one in incumbents)
    with beside(made, wanted) as found:
        yield
        bounds.update(found() or {})


def _limits_gap(one: Incumbent, best_us: float) -> bool:
    """Return whether the least bound is so low that it is made again."""
    return best_us > (1 + one.costs.problem.budget.enough_gap) * one.least_us
