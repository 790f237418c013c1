"""The incumbent: the best plan that the search has found, and what is done to make it better.

A candidate is bounded again within memory and by its linear relaxation, and fitted and simulated
unless that is enough. In the end those near the best are cut anew and tried with the other axis
outermost; then the candidates that limit the gap are bounded with more effort. When all placements
are explored, the cuts of the best and those of its linear relaxation are polished, and those near
the best are tried with placements that were not explored where the gap is wide. Where that leaves
a large gap, the best is cut from other begins and runs of its cuts are moved.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from meshwright.ir.mesh import Mesh

from ..pipeline.schedule_table import Listing
from ..pipeline.schedules import PLAIN
from .begins import begun_anew
from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .fitting import (
    Fitted,
    Found,
    descended,
    fastest_of,
    fit,
    fitted_to,
    never_fits,
    polished,
    refitted,
    reordered,
    ways_to_fit,
)
from .lp_bound import num_actions, tightened, tighter, weighted_us
from .other_placements import other_placements

INF = float("inf")
Progress = Callable[[str], None]
Shares = tuple[float, ...]  # of the price of a byte to a device alone
Others = list[tuple[str, CandidateCosts]]  # what is other about placements, and costs with them


@dataclass(frozen=True)
class Loser:
    """A candidate that was not chosen: its bound, and the cuts and options that were found of it.

    fits: False where no cuts fit the memory, None where that was never asked.
    """

    candidate: Candidate
    bound_us: float
    ways: tuple[Fitted, ...] = field(default=(), repr=False)
    fits: bool | None = None

    @cached_property
    def step_us(self) -> float | None:
        """Return the step of the fastest; None where none was found."""
        fastest = fastest_of(self.ways)
        return None if fastest is None else fastest.timeline.step_us

    def reason(self, best: Fitted) -> str:
        """Return in one line why the candidate lost, or what it could gain at most where it was
        not simulated."""
        won = best.timeline.step_us
        if self.step_us is not None:
            return f"{self.step_us / 1e3:,.1f} ms a step, {self.step_us / won - 1:+.1%}"
        if self.fits is False:
            return "its cuts do not fit the memory"
        least = f"at least {self.bound_us / 1e3:,.1f} ms a step"
        if self.bound_us >= won:
            return f"{least}, {self.bound_us / won - 1:+.1%}"
        return f"not simulated: {least}, {1 - self.bound_us / won:.1%} to gain at most"


@dataclass
class Incumbent:
    """The best so far, and all that was considered.

    bounds: of candidates that may be faster: simulated ones, as other cuts of them were not, and
    those that were not worth it. cuts: by schedule, the fastest plan that was cut anew. others: by
    compute mesh, rows and shares of the price of a byte, costs with other placements, and what
    these are. at: what is being done.
    """

    costs: CandidateCosts
    limit: float
    progress: Progress
    num_unfit: int
    best: Fitted | None = None
    losers: list[Loser] = field(default_factory=list)
    bounds: dict[Candidate, float] = field(default_factory=dict)
    fitted: list[Fitted] = field(default_factory=list)
    cut_anew: set[Candidate] = field(default_factory=set)
    cuts: dict[Listing, Fitted] = field(default_factory=dict)
    others: dict[tuple[Mesh, int, Shares], Others] = field(default_factory=dict)
    simulated: int = 0
    at: str = ""

    def __post_init__(self) -> None:
        self.worth = self.costs.problem.budget.worth

    @property
    def best_us(self) -> float:
        return INF if self.best is None else self.best.timeline.step_us

    @property
    def rows(self) -> int:
        """Rows of the micro-batches of the best."""
        return 1 if self.best is None else self.best.candidate.micro_batch

    @property
    def mesh(self) -> Mesh:
        """The compute mesh of the best plan; there must be a best plan."""
        assert self.best is not None
        return self.best.candidate.compute

    @property
    def enough_us(self) -> float:
        """The bound from which a candidate is not worth simulating."""
        return self.best_us / (1 + self.worth)

    @property
    def near_us(self) -> float:
        """The step up to which a plan is near the best."""
        return (1 + self.costs.problem.budget.near) * self.best_us

    def may_gain(self, bound: float) -> bool:
        """Return whether a bound leaves so much to gain that its candidate is simulated at once."""
        return (1 + self.costs.problem.budget.at_once) * bound < self.best_us

    def consider(self, c: Candidate, bound: float) -> None:
        """Bound a candidate again, and simulate it unless that is enough."""
        bound = max(bound, weighted_us(self.costs, c, self.limit))
        if bound < self.enough_us:
            bound = tighter(self.costs, c, bound, self.enough_us, self.limit)
        if not self.passes_over(c, bound):
            self.fit(c, bound)

    def passes_over(self, c: Candidate, bound: float) -> bool:
        """Return whether the bound of a candidate is enough not to simulate it."""
        if bound == INF:
            self._unfit(c, bound)
        elif bound >= self.enough_us:
            self.losers.append(Loser(c, bound))
            if bound < self.best_us:
                self.bounds[c] = bound
        return bound >= self.enough_us

    def look_closer(self, left_us: float) -> list[Loser]:
        """Ask a smaller gain of candidates where the gap is wide, and return those passed over that
        may have it. left_us: a bound on those not considered."""
        budget = self.costs.problem.budget
        if self.worth == budget.worth_where_wide or not self._stays_wide(left_us):
            return []
        self.worth = budget.worth_where_wide
        again = [x for x in self.losers if x.fits is None and x.bound_us < self.enough_us]
        self.losers = [x for x in self.losers if x.fits is not None or x.bound_us >= self.enough_us]
        return again

    def _stays_wide(self, left_us: float) -> bool:
        """Return whether the gap is wide still when what limits it is bounded with more effort."""
        budget = self.costs.problem.budget
        for _ in range(budget.max_thorough):
            if self._is_within(budget.wide, min(left_us, self.least_us)):
                return False
            if left_us <= self.least_us or not self.tighten_least(self.best_us):
                return True
        return not self._is_within(budget.wide, min(left_us, self.least_us))

    def _unfit(self, c: Candidate, bound: float) -> None:
        self.num_unfit += 1
        self.losers.append(Loser(c, bound, fits=False))

    def fit(self, c: Candidate, bound: float, placed: Found | None = None) -> None:
        """Cut a candidate, and simulate it unless its ways are all too slow to be cut anew. placed:
        what is known to fit."""
        ways = ways_to_fit(self.costs, c, self.limit, placed)
        if ways or not never_fits(self.costs, c):
            self.bounds[c] = bound
        if not ways:
            self._unfit(c, bound)
            return
        self.simulated += 1
        self.losers.append(Loser(c, bound, ways, True))
        far_us = (1 + self.costs.problem.budget.far) * bound
        least = min(way.least_us for way in ways)
        if least <= self.near_us or least > far_us:
            self._fit_near(ways, far_us)

    def _fit_near(self, ways: tuple[Fitted, ...], far_us: float) -> None:
        """Take the fastest way of a candidate. Cut it anew where it is near the best, as a lower
        best leaves less to consider, or so far from its bound that its cuts say little of it."""
        fitted = _fastest(ways)
        self.fitted.append(fitted)
        better = self._offer(fitted)
        short = num_actions(fitted.candidate) <= self.costs.problem.budget.far_actions
        if better or not fitted.exceeds(self.near_us) or (short and fitted.least_us > far_us):
            self._cut_anew(fitted)

    def doing(self, what: str) -> None:
        """Say what is being done, beside the best so far."""
        self.at = what
        best = f"; best so far {self.best_us / 1e3:,.1f} ms" if self.best else ""
        self.progress(f"{what}{best}")

    @property
    def priced_by(self) -> CandidateCosts:
        """Return the costs that the best was fitted with."""
        return self.costs if self.best is None else self.best.costs

    def _offer(self, fitted: Fitted) -> bool:
        """Return whether it is the best now."""
        better = fitted.beats(self.best_us)
        if better:
            self.best = fitted
            self.doing(self.at)
        return better

    def _offer_one(self, ways: tuple[Fitted, ...]) -> None:
        """Offer the fastest of several, where one may be the best."""
        if min(way.least_us for way in ways) < self.best_us:
            self._offer(_fastest(ways))

    def _near(self) -> list[Fitted]:
        """Return the simulated plans that are not much slower than the best, the fastest first."""
        near = [f for f in self.fitted if not f.exceeds(self.near_us)]
        return sorted(near, key=lambda f: (f.timeline.step_us, f.candidate))

    def _cut_anew(self, fitted: Fitted) -> None:
        c = fitted.candidate
        if c not in self.cut_anew:
            self.cut_anew.add(c)
            ways = descended(self.costs, fitted, self.limit)
            self._take(c, ways)
            if c.schedule not in PLAIN and self.costs.problem.pins.cuts is None:
                self._cut_as_others(c, ways)

    def _take(self, c: Candidate, ways: tuple[Fitted, ...]) -> None:
        """Keep what was found of a candidate, and offer the fastest."""
        self._note(c, ways=ways)
        self._offer_one(ways)

    def _cut_as_others(self, c: Candidate, ways: tuple[Fitted, ...]) -> None:
        """Cut again from the cuts of the fastest plan of the same schedule, where these are faster.

        Plans of one schedule differ in what ranks store and reduce, and a descent ends where no
        neighbour is faster: one may have led to better cuts than the other. 1F1B and GPipe are left
        out, as theirs begin with the cuts whose slowest stage is the fastest.
        """
        known = self.cuts.get(c.listing)
        if known is not None and all(known.starts != way.starts for way in ways):
            other = fitted_to(self.costs, c, known.starts, self.limit)
            if other is not None and other.beats(_fastest(ways).timeline.step_us):
                ways += descended(self.costs, other, self.limit)
                self._take(c, ways)
        if known is None or _fastest(ways).beats(known.timeline.step_us):
            self.cuts[c.listing] = _fastest(ways)

    def _note(self, c: Candidate, **found: Any) -> None:
        """Change what is known of a candidate that was considered."""
        place = next(k for k, x in enumerate(self.losers) if x.candidate == c)
        self.losers[place] = replace(self.losers[place], **found)

    def improve(self) -> None:
        """Cut anew what is near the best, and try it with the other axis outermost."""
        near = self._near()
        for count, fitted in enumerate(near, start=1):
            self.doing(f"other cuts of plan {count} of {len(near)} near the best")
            if self.bounds.get(fitted.candidate, INF) < self.enough_us:
                self._cut_anew(fitted)
        self._reorder()

    def place_again(self) -> float:
        """Try the best with other placements, and return the share of its step that the best of
        them gains."""
        assert self.best is not None
        before, c = self.best_us, self.best.candidate
        self._try_placed(c, self.placed_otherwise(c.compute))
        return 1 - self.best_us / before

    def _try_placed(self, c: Candidate, others: Others) -> None:
        """Fit a candidate with other placements, and cut it anew where it is near the best."""
        for what, other in others:
            self.doing(what)
            found = fit(other, c, self.limit)
            if found is not None and not found.exceeds(self.near_us):
                self._offer_one(descended(other, found, self.limit))

    def _place_near(self) -> None:
        """Try the plans nearest to the best with placements that are not explored."""
        budget = self.costs.problem.budget
        most_us = (1 + budget.near_wide) * self.best_us
        near = [x for x in self.losers if min((w.least_us for w in x.ways), default=INF) < most_us]
        steps = [(x.step_us, x.candidate) for x in near if x.step_us and x.step_us < most_us]
        for _, c in sorted(steps):
            self._try_placed(c, self.placed_otherwise(c.compute, budget.wide_shares))

    def placed_otherwise(self, mesh: Mesh, shares: Shares | None = None) -> Others:
        """Return what is other about placements of a mesh, and costs with them. shares: of the
        price of a byte, by default those of meshes that are explored again."""
        shares = self.costs.problem.budget.price_shares if shares is None else shares
        key = mesh, self.rows, shares
        if key not in self.others:
            self.others[key] = list(other_placements(self.costs, *key))
        return self.others[key]

    def leave(self, best: Fitted | None) -> None:
        """Take the best of a search under other placements."""
        self.best = best

    def polish(self, bound_us: float) -> None:
        """Move the cuts of the best by one unit, one at a time; where the gap is wide still, try
        those near the best with other placements. bound_us: of all explored."""
        budget = self.costs.problem.budget
        if not self._is_within(budget.enough_polished, bound_us):
            self.doing("moving the cuts of the best one by one")
            self._move_cuts(self.best)
        if not self._is_within(budget.wide, bound_us):
            self._place_near()

    def cut_further(self, bound_us: float) -> None:
        """Polish the cuts of an LP bound of the best made with more effort; cut the best from other
        begins and move runs of its cuts while the gap is large. bound_us: of all that was explored.
        """
        if not self._is_within(self.costs.problem.budget.enough_polished, bound_us):
            self._relax(bound_us)
        self._begin_anew(bound_us)
        self._move_runs(bound_us)

    def _relax(self, bound_us: float) -> None:
        """Polish the best in cuts nearest to those of its LP bound made with more effort, unless
        that takes long for a gap that is small."""
        assert self.best is not None
        c, budget = self.best.candidate, self.costs.problem.budget
        long = num_actions(c) > budget.far_actions and self._is_within(budget.enough_gap, bound_us)
        if long or budget.max_polished == 0 or c.schedule in PLAIN:
            return
        self.doing("moving the cuts of the linear relaxation one by one")
        if self._move_cuts(refitted(self.priced_by, c, self.limit, budget.thorough)):
            self._move_cuts(self.best)

    def _move_cuts(self, fitted: Fitted | None) -> bool:
        """Polish cuts, if there are any, and return whether that makes them the best."""
        return fitted is not None and self._offer(polished(self.priced_by, fitted, self.limit))

    def _is_within(self, gap: float, bound_us: float) -> bool:
        """Return whether the gap to a bound is so small."""
        return self.best_us <= (1 + gap) * bound_us

    def _is_enough(self, bound_us: float) -> bool:
        """Return whether the gap is so small that the cuts of the best stay."""
        return self._is_within(self.costs.problem.budget.enough_moved, bound_us)

    def _begin_anew(self, bound_us: float) -> None:
        """Cut the best from other begins, where that leaves a large gap, and polish the fastest."""
        budget = self.costs.problem.budget
        if self.best is None or not budget.begins or self._is_enough(bound_us):
            return
        c = self.best.candidate
        if c.schedule in PLAIN or self.costs.problem.pins.cuts is not None:
            return
        self.doing("other cuts of the best to begin with")
        found = begun_anew(self.priced_by, c, self.limit, budget.begins)
        for fitted in found[: budget.begins_polished]:
            self._move_cuts(fitted)

    def _move_runs(self, bound_us: float) -> None:
        """Move runs of neighbouring cuts of the best, too, while that leaves a large gap."""
        budget = self.costs.problem.budget
        if not (budget.max_polished and budget.max_runs):
            return
        while self.best is not None and not self._is_enough(bound_us):
            self.doing("moving runs of cuts of the best")
            given = self.priced_by, self.best, self.limit, budget.longest_run
            if not self._offer(polished(*given)):
                break

    def _reorder(self) -> None:
        """Try those near the best with the other axis outermost, and cut anew what comes near."""
        if not self.costs.problem.any_order:
            return
        slower = 1 + self.costs.problem.budget.near_reordered
        own = self.best if self.priced_by is self.costs else None
        for fitted in [f for f in (own, *self._near()) if f is not None]:
            other = reordered(self.costs, fitted)
            if other is None or other.exceeds(slower * self.best_us):
                continue
            c, ways = other.candidate, [other]
            self.doing(f"the other axis outermost: {c}")
            self._offer(other)
            if c not in self.cut_anew:  # as one cut twice has one fit
                self.cut_anew.add(c)
                ways += [found] if (found := fit(self.costs, c, self.limit)) else []
            for found in ways:
                self._offer_one(descended(self.costs, found, self.limit))

    @property
    def least_us(self) -> float:
        """Return the least bound of what was considered."""
        return min(self.bounds.values(), default=INF)

    def tighten_least(self, most_us: float) -> bool:
        """Bound the candidate of the least bound again, with more effort; return whether that
        helps. most_us: what it need not exceed."""
        c = min(self.bounds, key=lambda c: (self.bounds[c], c))
        self.doing(f"bound of {c}, with more effort")
        effort = self.costs.problem.budget.thorough
        found = tightened(self.costs, c, self.limit, most_us, effort).step_us
        if found <= self.bounds[c]:
            return False
        self.bounds[c] = found
        self._note(c, bound_us=found)
        return True


def _fastest(ways: tuple[Fitted, ...]) -> Fitted:
    fastest = fastest_of(ways)
    assert fastest is not None
    return fastest
