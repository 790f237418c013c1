"""The linear relaxation of a pipeline: the shortest step under its own schedule.

Units are split freely among stages and options, fractions of them too, and need not be contiguous,
but for the first and the last, which stay at their ends. The simulated step of every choice of cuts
and options that fits is then a point of this linear program, and its optimum a bound:

Variables, all >= 0
    n[s,k,j]   units of kind k under option j on stage s
    d[s,a]     how long an action a (F, B, I, W, last: the last backward) of stage s takes
    o[s], o[k] reductions beside the last backward in one of s, and beside other actions of a
               stretch k (pipeline/closings.py)
    i[k], g[r] reductions while a rank waits in a stretch, and after its last action
    end, tail  when all actions and collectives are done; what comes after
    x[s]       what the units of all stages ahead of s weigh in a mix (mixes.py), above its least
Objective
    end + tail
Constraints
    all[k]     sum over s, j of n[s,k,j] = how many units there are of k
    some[s]    sum over k, j of n[s,k,j] >= 1
    mix[s]     x[s] + sum of n weight(k) = x[s+1] <= most - least
    long[s,a]  d[s,a] >= sum of n us(k,j,a), alone; and beside collectives, less what the ends of a
               stage are spared
    path[i]    end >= sum of d and sends along a path of waits (pipeline/critical_path.py), with
               share o[k] + i[k] of stretches that it passes from end to end, and with what follows
               it: g[r], where it ends with the last action of r; or in place of its last action,
               the reductions that start from there on
    late[k]    sum of o and i from where the stage of k closes, and g[r] >= reductions of stages
               that close then or later; left out where they run for every micro-batch
    within     d[s,last] >= sum of n us(k,j,last) + share o[s], as the part of d by which o makes
               it longer is made no longer itself: share = price / (1 + price); d[s,last] >= o[s];
               sum of d in k + share o[k] >= o[k]
    busy[r]    end >= all collectives of rank r
    ends[r]    tail >= update and refreshed parameters of rank r
    fits[r,i]  what rank r stores, and holds as its i-th backward runs, with what the leanest
               function has alive <= limit; left out where another i has as many micro-batches in
               flight of every stage
    taken[r]   what the units of rank r take at their fastest >= what whole units take the busiest
               rank (whole_units.py); of one rank after another, the bound being the least of these

Paths are added as they are needed: a solution whose longest path is longer than its end asks for
that one, until what is missing is next to nothing. Every solution on the way is a bound.

Times are in units of the mean stage, bytes in units of the limit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from meshwright.ir.schedule import Schedule

from .. import solver
from ..budget import BUDGET, LpEffort
from ..pipeline.closings import LAST, Node, Stretch
from ..pipeline.critical_path import Path, Waits
from ..pipeline.peak_moments import Moment
from ..solver import Problem
from .mixes import Mix
from .points import INF, Point

# What the solver may be off by, relative.
TOLERANCE = 1e-6

Times = dict[str, tuple[float, ...]]  # us by option, of each kind of action


@dataclass(frozen=True)
class Kind:
    """Units that cost the same, `count` of them; first and last stay on their ends' stages.

    alone, beside: without collectives and with them; beside lacks kinds of action that have none,
    "last" is a backward in one of the last micro-batch. traffic_us: all its collectives of a step;
    closing_us: its reductions after the last micro-batch; tail_us: its update. kept, handed: by
    option, bytes of a micro-batch up to B or I, and from I to W.
    """

    count: int
    alone: Times
    beside: Times
    traffic_us: float
    tail_us: float
    stored_bytes: float
    kept: tuple[float, ...]
    handed: tuple[float, ...]
    closing_us: float = 0.0

    @cached_property
    def fastest_us(self) -> float:
        """A micro-batch through it, under the fastest option."""
        actions = [us for kind, us in self.alone.items() if kind != LAST]
        return min(map(sum, zip(*actions, strict=True)))


@dataclass(frozen=True)
class Pipeline:
    """kinds: the first unit's, the last unit's, then the others. spared: us that an action may take
    less than its units beside collectives. send_us: by stage, at least, to the next.

    limit_bytes: of a rank, None for no limit; fixed_bytes: what each rank holds whatever it runs;
    passing_bytes: what functions have alive in backward at least, on the last stage and elsewhere.
    moments: by rank, at which it may hold most (`peak_moments`). mixes: that cuts keep.
    reduces_late: whether a unit reduces its gradients after the last micro-batch alone.
    """

    kinds: tuple[Kind, ...]
    schedule: Schedule
    waits: Waits
    stage_ranks: tuple[int, ...]
    spared: dict[str, float]
    send_us: tuple[float, ...]
    overlap_price: float
    limit_bytes: float | None
    fixed_bytes: tuple[float, ...]
    passing_bytes: tuple[float, float]
    moments: tuple[tuple[Moment, ...], ...]
    mixes: tuple[Mix, ...] = ()
    reduces_late: bool = False

    @property
    def num_stages(self) -> int:
        return len(self.stage_ranks)

    @property
    def backward(self) -> str:
        """The action that starts a backward."""
        return "I" if "I" in self.kinds[0].alone else "B"


@dataclass(frozen=True)
class LpBound:
    """step_us: a bound on all cuts and options that fit; inf where none do, 0 where the solver gave
    up. stage_us: by stage, what its units take alone at their fastest, at the best point. paths:
    the critical paths in the LP."""

    step_us: float
    stage_us: tuple[float, ...] = ()
    paths: tuple[Path, ...] = ()


def bound_pipeline(
    pipeline: Pipeline,
    enough_us: float = INF,
    effort: LpEffort = BUDGET.quick,
    paths: Sequence[Path] = (),
    step: float = BUDGET.lp_step,
    busiest_us: float = 0.0,
) -> LpBound:
    """Stops at a bound of `enough_us`, or when the effort is made.

    paths: of the same waits, to begin with. step: SearchBudget.lp_step. busiest_us: of units that
    are whole, what some rank takes of a micro-batch at least.
    """
    builder = Builder(pipeline, enough_us, effort, list(paths), step)
    found = replace(builder.solve(), paths=tuple(builder.paths))
    if not busiest_us or not found.stage_us or not 0.0 < found.step_us < enough_us:
        return found
    step_us = builder.with_busiest_us(busiest_us)
    # That nothing fits is for the program without it to say, whatever is enough.
    return replace(found, step_us=max(found.step_us, step_us)) if step_us < INF else found


Terms = list[tuple[int, float]]
Row = tuple[str, Terms, float]


def _less(terms: Terms) -> Terms:
    return [(v, -x) for v, x in terms]


@dataclass
class Builder:
    """The linear program of a pipeline, and its solution. rows: by index, the paths of rows that
    say how long one is. best: the point of the shortest end. program: what `solve` left, as it was
    solved last."""

    pipeline: Pipeline
    enough_us: float
    effort: LpEffort
    paths: list[Path]
    step: float
    problem: Problem = field(default_factory=Problem)
    shares: dict[int, list[tuple[Kind, int, int]]] = field(default_factory=dict)
    kind_of: dict[int, int] = field(default_factory=dict)  # the number of its kind, by n
    durations: dict[Node, int] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)  # g, by rank
    longer: dict[int, Terms] = field(default_factory=dict)  # what o and i add, by stretch
    # The last reductions of a stage, all or only those that W starts.
    closing: dict[tuple[int, bool], Terms] = field(default_factory=dict)
    rows: dict[int, Path] = field(default_factory=dict)
    best: Point = field(default_factory=lambda: Point({}, (), {}, {}))
    program: solver.LinearProgram = field(init=False)

    def __post_init__(self) -> None:
        whole = sum(k.count * k.fastest_us for k in self.pipeline.kinds)
        self.unit_us = whole / self.pipeline.num_stages or 1.0
        self.closes = any(k.closing_us for k in self.pipeline.kinds)
        self.limit = (1 + TOLERANCE) * (self.pipeline.limit_bytes or 1.0)
        self.end = self._new("end", 1.0)

    def solve(self) -> LpBound:
        self._units()
        self._mixed()
        self._actions()
        self._closing()
        self._late()
        self._ranks(self._new("tail", 1.0))
        for path in (*self.pipeline.waits.plain, *self.paths):
            for row in self._rows(path):
                self.rows[len(self.problem.rows)] = path
                self.problem.at_least(*row)
        if self.pipeline.limit_bytes is not None:
            self._memory()
        self.program = solver.LinearProgram(self.problem)
        return self._refined()

    def with_busiest_us(self, busiest_us: float) -> float:
        """Return the least step in which some rank takes so long: the shortest of those in which
        one rank does, by the paths of the last solution; 0 where that is such a step.

        Units that are split take the same on all ranks, where whole ones do not.
        """
        least, values = busiest_us / self.unit_us, self.program.values()
        taken = [self._taken(rank) for rank in self._all_ranks]
        if any(sum(us * values[v] for v, us in terms) >= least for terms in taken):
            return 0.0  # the last solution is such a step
        rows = [self.program.at_least(terms, 0.0) for terms in taken]
        return min(self._step_with(row, least) for row in rows)

    def _step_with(self, row: int, least: float) -> float:
        """Return the step where a row is at least so much, and then no longer."""
        self.program.require(row, least * (1 - TOLERANCE))
        step = self.program.solve()
        self.program.require(row, 0.0)
        return INF if step is None else step * self.unit_us * (1 - TOLERANCE)

    def _taken(self, rank: int) -> Terms:
        """Return what the units of a rank take under their fastest options."""
        shares = [x for s in self._stages(rank) for x in self.shares[s]]
        return [(v, k.fastest_us / self.unit_us) for k, _, v in shares]

    def _refined(self) -> LpBound:
        """Solve, and add longest paths, again and again: of the solution, and of a point between it
        and the best one so far, which keeps solutions from swinging."""
        rounds, near = self.effort.rounds, 1 + self.effort.close
        bounds = [0.0]
        while step := self.program.solve():
            bounds.append(step * self.unit_us * (1 - TOLERANCE))
            if bounds[-1] >= self.enough_us:
                return self._lp_bound(bounds[-1])
            values = self.program.values()
            paths = self._longest(values)
            end_us = values[self.end] * self.unit_us
            gained = len(bounds) <= rounds + 1 or bounds[-1] > near * bounds[-1 - rounds]
            if self.best.end_us <= near * end_us or not gained:
                return self._lp_bound(bounds[-1])
            for path in paths:
                for _, terms, least in self._rows(path):
                    self.rows[self.program.at_least(terms, least)] = path
        return LpBound(INF if step is None else bounds[-1])

    def _longest(self, values: list[float]) -> list[Path]:
        """Return the longest paths of the solution, and of a point between it and the best one."""
        waits, send_us = self.pipeline.waits, self.pipeline.send_us
        solution, best = self._solution(values), self.best
        points = (solution, best.toward(solution, self.step)) if best.durations else (solution,)
        found: list[Path] = []
        count = max(1, len(waits.ranks) // self.effort.ranks)
        for point in points:
            timed = point.timed(waits, send_us)
            longest = timed.longest()
            if longest[0][0] < self.best.end_us:
                self.best = replace(point, end_us=longest[0][0])
            paths = [timed.path(index) for _, index in longest[:count]]
            new = [path for path in paths if path not in self.paths]
            found += new
            self.paths += new
        return found

    def _solution(self, values: list[float]) -> Point:
        """Return the program's last solution as a point, its longest path not known."""
        us = {node: values[d] * self.unit_us for node, d in self.durations.items()}
        left = {rank: values[g] * self.unit_us for rank, g in self.left.items()}
        closing = {key: self._sum_us(terms, values) for key, terms in self.closing.items()}
        return Point(us, self._stage_us(values), left, closing)

    def _sum_us(self, terms: Terms, values: list[float]) -> float:
        return sum([values[v] * us for v, us in terms]) * self.unit_us

    def _lp_bound(self, step_us: float) -> LpBound:
        """Return the bound, and the times of the stages of the best point."""
        return LpBound(step_us, self.best.stage_us or self._stage_us(self.program.values()))

    def _stage_us(self, values: list[float]) -> tuple[float, ...]:
        """Return the times of the stages of the program's last solution."""
        stages = [0.0] * self.pipeline.num_stages
        for s, shares in self.shares.items():
            stages[s] = sum([values[v] * k.fastest_us for k, _, v in shares if values[v]])
        return tuple(stages)

    def _new(self, name: str, cost: float = 0.0) -> int:
        return self.problem.variable(name, cost, upper=INF)

    def _units(self) -> None:
        """n, all and some."""
        stages = self.pipeline.num_stages
        self.shares = {s: [] for s in range(stages)}
        for k, kind in enumerate(self.pipeline.kinds):
            homes = ([0], [stages - 1])[k] if k < 2 else range(stages)
            mine = []
            for s in homes:
                for option in range(len(kind.kept)):
                    mine.append(self._new(f"n[{s},{k},{option}]"))
                    self.shares[s].append((kind, option, mine[-1]))
                    self.kind_of[mine[-1]] = k
            self.problem.equal(f"all[{k}]", [(v, 1.0) for v in mine], float(kind.count))
        for s in range(1, stages - 1):
            self.problem.at_least(f"some[{s}]", [(v, 1.0) for _, _, v in self.shares[s]], 1.0)

    def _mixed(self) -> None:
        """x and mix."""
        for mix in self.pipeline.mixes:
            ahead: Terms = []
            least = mix.least
            for s in range(self.pipeline.num_stages - 1):
                x = self.problem.variable(f"x[{s + 1}]", 0.0, upper=mix.most - mix.least)
                mine = [(v, mix.weights[self.kind_of[v]]) for _, _, v in self.shares[s]]
                self.problem.equal(f"mix[{s}]", [*mine, *ahead, (x, -1.0)], least)
                ahead, least = [(x, 1.0)], 0.0

    def _actions(self) -> None:
        """d and long."""
        first = self.pipeline.kinds[0]
        for s, shares in self.shares.items():
            for a in first.alone:
                d = self.durations[s, a] = self._new(f"d[{s},{a}]")
                self._long(d, [(v, -k.alone[a][n]) for k, n, v in shares], 0.0)
                if a in first.beside:
                    beside = [(v, -k.beside[a][n]) for k, n, v in shares]
                    self._long(d, beside, self.pipeline.spared[a])

    def _long(self, d: int, terms: Terms, spared_us: float) -> None:
        scaled = [(v, us / self.unit_us) for v, us in terms]
        self.problem.at_least("long", [(d, 1.0), *scaled], -spared_us / self.unit_us)

    def _closing(self) -> None:
        """What a stage reduces in the end."""
        kinds = (False, True) if self.pipeline.backward == "I" else (False,)
        for s, shares in self.shares.items():
            for by_weights in kinds:
                self.closing[s, by_weights] = [
                    (v, k.closing_us / self.unit_us)
                    for k, n, v in shares
                    if not by_weights or k.alone["W"][n]
                ]

    def _late(self) -> None:
        """late and within, where reductions run in the end alone."""
        late = self.closes and self.pipeline.reduces_late
        stretches = [*enumerate(self.pipeline.waits.stretches)] if late else []
        for rank in self._all_ranks if late else ():
            g = self.left[rank] = self._new(f"g[{rank}]")
            terms: Terms = [(g, 1.0)]
            for number, stretch in reversed(stretches):
                if stretch.rank == rank:
                    terms += [(v, 1.0) for v in self._beside(number, stretch)]
                    closing = self.closing[stretch.stage, self.pipeline.backward == "I"]
                    self.problem.at_least("late", [*terms, *_less(closing)], 0.0)
                    terms += _less(closing)

    def _beside(self, number: int, stretch: Stretch) -> Iterator[int]:
        """Yield the reductions that run in a stretch, and in the last backward ahead of it."""
        price = self.pipeline.overlap_price / (1 + self.pipeline.overlap_price)
        if (last := self.durations.get((stretch.stage, LAST))) is not None:
            yield (o := self._new(f"o[{stretch.stage},last]"))
            shares = self.shares[stretch.stage]
            alone = [(v, -k.alone[LAST][n] / self.unit_us) for k, n, v in shares]
            self.problem.at_least("within", [(last, 1.0), (o, -1.0)], 0.0)
            self.problem.at_least("within", [(last, 1.0), (o, -price), *alone], 0.0)
        if stretch.actions:
            yield (i := self._new(f"i[{number}]"))
            self.longer[number] = [(i, 1.0)]
        if stretch.nodes:
            yield (o := self._new(f"o[{number}]"))
            self.longer[number].append((o, price))
            nodes = [(self.durations[node], float(n)) for node, n in stretch.nodes.items()]
            self.problem.at_least("within", [(o, price - 1.0), *nodes], 0.0)

    def _ranks(self, tail: int) -> None:
        """busy and ends."""
        for rank in self._all_ranks:
            shares = [x for s in self._stages(rank) for x in self.shares[s]]
            self._covers(self.end, [(v, k.traffic_us) for k, _, v in shares])
            self._covers(tail, [(v, k.tail_us) for k, _, v in shares])

    @property
    def _all_ranks(self) -> range:
        return range(len(self.pipeline.schedule))

    def _stages(self, rank: int) -> list[int]:
        return [s for s, home in enumerate(self.pipeline.stage_ranks) if home == rank]

    def _rows(self, path: Path) -> Iterator[Row]:
        """A path with what is left after the last action of its rank, and up to its last action
        with the reductions that start from there on."""
        left = self.left.get(path.ending.rank)
        yield self._path_row(path, [] if left is None else [(left, 1.0)])
        if self.closes and path.ending.closes:
            reduce = [term for key in path.ending.closes for term in self.closing[key]]
            yield self._path_row(path.until_its_end(), reduce)

    def _path_row(self, path: Path, more: Terms) -> Row:
        nodes = [(self.durations[node], float(count)) for node, count in path.nodes.items()]
        longer = [term for number in path.along for term in self.longer.get(number, ())]
        sends_us = path.sends_us(self.pipeline.send_us)
        return "path", [(self.end, 1.0), *_less([*nodes, *longer, *more])], sends_us / self.unit_us

    def _covers(self, variable: int, terms: Terms) -> None:
        if any(us for _, us in terms):
            scaled = [(v, -us / self.unit_us) for v, us in terms]
            self.problem.at_least("covers", [(variable, 1.0), *scaled], 0.0)

    def _memory(self) -> None:
        """fits."""
        p = self.pipeline
        last, elsewhere = p.passing_bytes
        limit = self.limit
        bytes_of = {
            s: [(v, k.stored_bytes, k.kept[n], k.handed[n]) for k, n, v in shares]
            for s, shares in self.shares.items()
        }
        for rank, moments in enumerate(p.moments):
            stages = self._stages(rank)
            for held, waiting, ends in moments:
                passing = last if ends else elsewhere
                counts = [(s, held.get(s, 0), waiting.get(s, 0)) for s in stages]
                terms = [
                    (v, -(stored + kept * in_flight + handed * late) / limit)
                    for s, in_flight, late in counts
                    for v, stored, kept, handed in bytes_of[s]
                ]
                free = 1.0 - (p.fixed_bytes[rank] + passing) / self.limit
                self.problem.at_least("fits", terms, -free)
