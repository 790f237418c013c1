"""The outer search: the fastest plan that fits, and how far from the best it may be.

Candidates (space.py) are taken in order of their lower bound (evaluate.py), a floor first that
costs next to nothing, ties by name; each is bounded again within memory and then by its linear
relaxation (bounds.py), cut within memory and simulated, until the next bound is no better than the
best step found. Those near the best are then cut anew; the best one's placements are solved again
at other prices of a byte, and its cuts polished; last, what holds up the gap is bounded with more
patience. What was not simulated cannot beat the bound it has, so

    bound = min(best step, bounds of candidates left over, bounds of pipelines simulated)
    gap = best / bound - 1

A candidate counts with its bound even when simulated, as other cuts and levels of it were not.
The bound is over meshes, micro-batches, ZeRO levels, schedules, cuts and the level of every
instance, with the placements that the sharding ILP gives for each tp at its price per byte.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from meshwright.ir.collector import rarely_collected
from meshwright.ir.errors import InfeasibleError, PlanError
from meshwright.ir.placement import Mesh
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced

from .bounds import LAST_PATIENCE, tightened
from .cluster import Cluster
from .cuts import cut_stages
from .demands import check_defaults
from .driver import choose_schedule, make_plan
from .evaluate import Evaluator
from .fitting import Fitted, descended, fit, fixed_pins, never_fits, polished, reordered
from .infeasible import Refusal
from .levels import CHOSEN
from .memory import usable_bytes
from .pins import Pins
from .predict import Prediction, predict, with_costs
from .recompute import check_rule
from .space import Candidate, candidates

INF = float("inf")
Progress = Callable[[str], None]

# Candidates simulated at most; those beyond leave their bounds to the gap.
MAX_SIMULATED = 200
# How much slower than the best a plan may be to be cut anew: what that gained at most on the
# shapes of benchmarks/search_time.py.
NEAR = 0.12
# How much slower than the best one may be, as it is cut, for other cuts to be sought with the other
# axis outermost.
REORDERED = 0.02
# Candidates bounded again in the end at most, and the gap at which no more are.
MAX_HELD, SMALL_GAP = 12, 0.03
# Of the default price of a byte, other ones that the best plan's placements are solved at.
PRICE_SHARES = (0.0, 0.25, 4.0)


@dataclass(frozen=True)
class Loser:
    """A candidate that was not chosen: its bound, and its step where it was simulated.

    fits: False where no cuts fit the memory, None where that was never asked.
    """

    candidate: Candidate
    bound_us: float
    step_us: float | None = None
    fits: bool | None = None

    def reason(self, best: Fitted) -> str:
        """One line."""
        won = best.timeline.step_us
        if self.step_us is not None:
            return f"{self.step_us / 1e3:,.1f} ms a step, {self.step_us / won - 1:+.1%}"
        if self.fits is False:
            return "its cuts do not fit the memory"
        return f"at least {self.bound_us / 1e3:,.1f} ms a step, {self.bound_us / won - 1:+.1%}"


@dataclass(frozen=True)
class Found:
    """The winner, what it was priced by, its bound and what else was looked at.

    default: where the winner's placements are of another price of a byte, the best step with those
    that the bound is over, and how far it is from that bound.
    """

    best: Fitted
    evaluator: Evaluator
    default: tuple[float, float] | None
    bound_us: float
    losers: tuple[Loser, ...]
    num_candidates: int
    num_simulated: int
    num_unfit: int

    @property
    def gap(self) -> float:
        return self.best.timeline.step_us / self.bound_us - 1


@rarely_collected()
def search_plan(
    traced: Traced,
    cluster: Cluster,
    *,
    seq: int,
    global_batch: int,
    pins: Pins,
    progress: Progress = lambda _: None,
) -> tuple[Plan, Found, Prediction]:
    """The fastest plan under the pins that fits every device, with what was predicted and why.

    Raises PlanError for pins that contradict each other or the sizes, InfeasibleError with the
    nearest changes that fit when nothing does.
    """
    evaluator = Evaluator(traced, cluster, seq, global_batch, pins)
    found = search(evaluator, progress)
    best = found.best
    plan = make_plan(
        traced,
        cluster,
        seq=seq,
        global_batch=global_batch,
        pins=fixed_pins(best, pins),
        sharded=found.evaluator.sharding(best.candidate.tp),
        saved=best.saved if best.candidate.recompute == CHOSEN or pins.offload == "on" else None,
    )
    prediction = predict(plan, cluster)
    limits = ("bound_us", found.bound_us), ("gap", found.gap)
    return with_costs(plan, prediction, cluster, *limits), found, prediction


def search(evaluator: Evaluator, progress: Progress = lambda _: None) -> Found:
    """Compare every candidate that the pins leave."""
    _check(evaluator)
    limit = usable_bytes(evaluator.cluster)
    ranked, num_unfit = _ranked(evaluator, limit, progress)
    looking = _Search(evaluator, limit, progress, num_unfit)
    left = INF
    known = {candidate: floor for floor, candidate in ranked}
    waiting = [(floor, False, candidate) for floor, candidate in ranked]  # sorted: a heap
    while waiting:
        bound, bounded, candidate = heappop(waiting)
        if looking.simulated == MAX_SIMULATED or bound >= looking.best_us:
            left = bound
            break
        if bounded:
            looking.look(candidate, bound)
        else:
            known[candidate] = max(bound, evaluator.bound_us(candidate))
            heappush(waiting, (known[candidate], True, candidate))
    if looking.best is None:
        raise InfeasibleError(Refusal(evaluator, limit).text())
    looking.finish()
    best = looking.best
    over_others = min(left, *looking.bounds.values())
    bound = min(best.timeline.step_us, over_others)
    default = None
    if (us := looking.default_us) is not None:
        default = us, us / over_others - 1
    losers = tuple(x for x in looking.losers if x.candidate != best.candidate)
    return Found(
        best,
        looking.priced_by,
        default,
        bound,
        losers + _unseen(known, looking.losers),
        len(ranked) + num_unfit,
        looking.simulated,
        looking.num_unfit,
    )


@dataclass
class _Search:
    """What was found so far. bounds: of what was looked at, as simulated cuts are not all cuts.
    priced_by: what the best was fitted with; default_us: the best step before placements at other
    prices made one faster."""

    evaluator: Evaluator
    limit: float
    progress: Progress
    num_unfit: int
    best: Fitted | None = None
    losers: list[Loser] = field(default_factory=list)
    bounds: dict[Candidate, float] = field(default_factory=dict)
    fitted: list[Fitted] = field(default_factory=list)
    cut_anew: set[Candidate] = field(default_factory=set)
    default_us: float | None = None
    simulated: int = 0

    def __post_init__(self) -> None:
        self.priced_by = self.evaluator

    @property
    def best_us(self) -> float:
        return INF if self.best is None else self.best.timeline.step_us

    def look(self, c: Candidate, bound: float) -> None:
        """Bound a candidate again, and simulate it unless that is enough."""
        bound = _tighter(self.evaluator, c, bound, self.best_us, self.limit)
        if bound == INF:
            self._unfit(c, bound)
        elif bound >= self.best_us:
            self.losers.append(Loser(c, bound))
        else:
            self._fit(c, bound)

    def _unfit(self, c: Candidate, bound: float) -> None:
        self.num_unfit += 1
        self.losers.append(Loser(c, bound, fits=False))

    def _fit(self, c: Candidate, bound: float) -> None:
        fitted = fit(self.evaluator, c, self.limit)
        if fitted is not None or not never_fits(self.evaluator, c):
            self.bounds[c] = bound
        if fitted is None:
            self._unfit(c, bound)
            return
        self.simulated += 1
        self.fitted.append(fitted)
        self.losers.append(Loser(c, bound, fitted.timeline.step_us, True))
        if self._offer(fitted, str(c)):
            self._cut_anew(fitted)  # a lower best leaves less to look at

    def _offer(self, fitted: Fitted, what: str) -> bool:
        """Whether it is the best now."""
        better = fitted.timeline.step_us < self.best_us
        if better:
            self.best = fitted
            self.progress(f"{fitted.timeline.step_us / 1e3:,.1f} ms: {what}")
        return better

    def _near(self) -> list[Fitted]:
        """What was simulated and is not far from the best, the fastest first."""
        found = sorted(self.fitted, key=lambda f: (f.timeline.step_us, f.candidate))
        return [f for f in found if f.timeline.step_us <= (1 + NEAR) * self.best_us]

    def _cut_anew(self, fitted: Fitted) -> None:
        c = fitted.candidate
        if c not in self.cut_anew:
            self.cut_anew.add(c)
            other = descended(self.evaluator, fitted, self.limit)
            self._note(c, step_us=other.timeline.step_us)
            self._offer(other, f"{c}, cut anew")

    def _note(self, c: Candidate, **found: float) -> None:
        """What became known of a candidate that was looked at."""
        place = next(k for k, x in enumerate(self.losers) if x.candidate == c)
        self.losers[place] = replace(self.losers[place], **found)  # type: ignore[arg-type]

    def finish(self) -> None:
        """Cut anew, try the best with placements at other prices, and polish its cuts."""
        for fitted in self._near():
            if self.bounds.get(fitted.candidate, INF) < self.best_us:
                self._cut_anew(fitted)
        self._reorder()
        assert self.best is not None
        c, before = self.best.candidate, self.best_us
        for share, other in _repriced(self.evaluator, c.tp):
            if (found := fit(other, c, self.limit)) is not None:
                found = descended(other, found, self.limit)
                if self._offer(found, f"a byte of its placements at {share:g} of the price"):
                    self.priced_by, self.default_us = other, before
        self._offer(polished(self.priced_by, self.best, self.limit), "its cuts polished")
        self._hold()

    def _reorder(self) -> None:
        """Try those near the best with the other axis outermost, and cut anew what comes near."""
        if not self.evaluator.any_order:
            return
        for fitted in [f for f in (self.best, *self._near()) if f is not None]:
            other = reordered(self.evaluator, fitted)
            if other is None or other.timeline.step_us > (1 + REORDERED) * self.best_us:
                continue
            c = other.candidate
            self._offer(other, str(c))
            for found in (fit(self.evaluator, c, self.limit), other):
                if found is not None:
                    self._offer(descended(self.evaluator, found, self.limit), f"{c}, cut anew")

    def _hold(self) -> None:
        """Bound those again that hold up the gap, the lowest first, while it is worth the time."""
        most = self.default_us or self.best_us
        for _ in range(MAX_HELD):
            c = min(self.bounds, key=lambda c: (self.bounds[c], c), default=None)
            if c is None or most <= (1 + SMALL_GAP) * self.bounds[c]:
                break
            found = tightened(self.evaluator, c, self.limit, most, LAST_PATIENCE).step_us
            if found <= self.bounds[c]:
                break
            self.bounds[c] = found
            self._note(c, bound_us=found)


def _repriced(evaluator: Evaluator, tp: int) -> Iterator[tuple[float, Evaluator]]:
    """Evaluators whose placements differ, with their share of the default price."""
    pins = evaluator.pins
    if tp == 1 or pins.price is not None:
        return
    base = evaluator.sharding(tp)
    seen = [base]
    for share in PRICE_SHARES:
        given = replace(pins, price=share * base.price)
        sizes = evaluator.seq, evaluator.global_batch
        other = Evaluator(evaluator.traced, evaluator.cluster, *sizes, given)
        found = other.sharding(tp)
        if not any(found.same_placements(known) for known in seen):
            seen.append(found)
            yield share, other


def _tighter(
    evaluator: Evaluator, c: Candidate, bound_us: float, most_us: float, limit: float
) -> float:
    """The best bound known, dearer ones only while they matter."""
    bound_us = max(bound_us, evaluator.bound_us(c, limit))
    if bound_us < most_us:
        bound_us = max(bound_us, tightened(evaluator, c, limit, most_us).step_us)
    return bound_us


def _unseen(known: dict[Candidate, float], seen: list[Loser]) -> tuple[Loser, ...]:
    """The best-bounded candidate of every mesh that was never simulated."""
    meshes = {x.candidate.mesh for x in seen}
    found: dict[Mesh, Loser] = {}
    for bound, candidate in sorted((bound, c) for c, bound in known.items()):
        if candidate.mesh not in meshes:
            fits = False if bound == INF else None
            found.setdefault(candidate.mesh, Loser(candidate, bound, fits=fits))
    return tuple(found.values())


def _check(evaluator: Evaluator) -> None:
    """The pins against each other and the sizes, before anything is solved."""
    pins = evaluator.pins
    _, chunks = choose_schedule(pins)
    if pins.cuts is not None:
        count = len(evaluator.traced.segmented.instances)
        stages = pins.pp * chunks if pins.pp and pins.schedule else pins.cuts.count(",") + 2
        cut_stages([1.0] * count, stages, pins.cuts)
    if pins.recompute is not None:
        check_rule(pins.recompute, list(evaluator.traced.joints.values()))


def _space(evaluator: Evaluator) -> list[Candidate]:
    pins, traced = evaluator.pins, evaluator.traced
    count = len(traced.segmented.instances)
    found = list(candidates(evaluator.cluster, evaluator.global_batch, pins, count))
    if not found:  # the messages of the fixed path say which demands collide
        stages = check_defaults(evaluator.cluster, evaluator.global_batch, pins)
        cut_stages([1.0] * count, stages, pins.cuts)
        raise PlanError(
            f"no mesh of {evaluator.cluster.num_devices} devices divides a global batch of "
            f"{evaluator.global_batch} rows over {count} segments under these pins; drop one"
        )
    return found


def _ranked(
    evaluator: Evaluator, limit: float, progress: Progress
) -> tuple[list[tuple[float, Candidate]], int]:
    """Candidates whose parameters can fit, by floor and then by name; and how many cannot."""
    space = _space(evaluator)
    for tp in sorted({c.tp for c in space}):
        progress(f"placements for tp={tp}")
        evaluator.sharding(tp)
    fitting = [c for c in space if evaluator.stored_bytes(c) <= limit]
    progress(f"{len(space)} candidates, {len(fitting)} of which can store the model")
    ranked = sorted((evaluator.floor_us(c), c) for c in fitting)
    return ranked, len(space) - len(fitting)
