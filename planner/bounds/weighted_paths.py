"""A bound of a pipeline in a fraction of a millisecond, by weak duality of its linear program.

A step is at least as long as every critical path of its schedule, and so as any mean of them. With
weights of the paths that add up to one, the mean is a sum over stages and actions of

    weight[s,a] d[s,a]

where d is at least the sum over the units of a stage of what the linear program (lp.py) says. A
unit adds to it what its stage weighs, so that the mean is least where every unit lies on the stage,
and runs under the option, where it adds least. That is a bound on the optimum of the linear
program whatever the weights, and close to it where they are near the dual values of its rows. The
weights used are the dual values for a pipeline of equal units: they follow from the schedule alone.

Memory is left out.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from meshwright.ir.schedule import Schedule

from ..budget import LpEffort
from ..pipeline.closings import LAST, Node
from ..pipeline.critical_path import Path, Waits
from .lp import INF, TOLERANCE, Builder, Kind, Pipeline, Times

Weights = Mapping[Node, float]


@dataclass(frozen=True)
class WeightedPaths:
    """Critical paths of a schedule with weights above 0, and their mean.

    nodes, sends: how often it passes a node, and a transfer by the earlier of its stages. ends: the
    weights of the paths by the node that they end with.
    """

    paths: tuple[Path, ...]
    nodes: Weights
    sends: Mapping[int, float]
    ends: Weights


def paths_of_equal_stages(
    schedule: Schedule, waits: Waits, stage_ranks: tuple[int, ...], effort: LpEffort, step: float
) -> WeightedPaths:
    """Return critical paths of a schedule whose units all take the same and whose backward takes
    twice a forward, weighted by their dual values: they follow from the schedule alone, and most
    pipelines have some of them."""
    kinds = {kind for _, kind in waits.nodes}
    us: Times = {k: (2.0 if k in ("B", LAST) else 1.0,) for k in (*sorted(kinds), LAST)}
    kind = Kind(
        count=1, alone=us, beside={}, traffic_us=0.0, tail_us=0.0,
        stored_bytes=0.0, kept=(0.0,), handed=(0.0,),
    )  # fmt: skip
    equal = Pipeline(
        kinds=(kind, kind, replace(kind, count=4 * len(stage_ranks) - 2)),
        schedule=schedule, waits=waits, stage_ranks=stage_ranks, spared=dict.fromkeys(us, 0.0),
        send_us=(0.0,) * len(stage_ranks), overlap_price=0.0, limit_bytes=None,
        fixed_bytes=(0.0,) * len(schedule), passing_bytes=(0.0, 0.0), moments=(),
    )  # fmt: skip
    builder = Builder(equal, INF, effort, [], step)
    builder.solve()
    return _weighted(builder)


def _weighted(builder: Builder) -> WeightedPaths:
    """Return the paths of a linear program, weighted by the dual values of their rows."""
    prices = builder.program.prices()
    used = [(prices[row], path) for row, path in builder.rows.items() if prices[row] > TOLERANCE]
    whole = sum(price for price, _ in used)
    nodes, sends, ends = Counter[Node](), Counter[int](), Counter[Node]()
    for price, path in used:
        share = price / whole
        ends[path.end] += share  # type: ignore[assignment]
        for counts, of in ((nodes, path.nodes), (sends, path.sends)):
            for key, count in of.items():
                counts[key] += share * count  # type: ignore[index, assignment]
    weighed = {id(path) for _, path in used}
    paths = tuple(path for path in builder.paths if id(path) in weighed)
    return WeightedPaths(paths, nodes, sends, ends)


def weighted_bound(pipeline: Pipeline, mean: WeightedPaths) -> float:
    """Return a bound on the step of a pipeline under any cuts and options, in us."""
    sends_us = sum(share * pipeline.send_us[stage] for stage, share in mean.sends.items())
    found = _Mean(pipeline, mean)
    reduces = any(kind.closing_us for kind in pipeline.kinds)
    beside = [a for a in pipeline.kinds[0].alone if a in pipeline.kinds[0].beside]
    ways = product((False, True) if reduces else (False,), *((False, True) for _ in beside))
    us = max(
        found.least_us(after, {a for a, on in zip(beside, taken, strict=True) if on})
        for after, *taken in ways
    )
    return (sends_us + us) * (1 - TOLERANCE)


class _Mean:
    """What a mean of paths takes at least, where units lie as they add least."""

    def __init__(self, pipeline: Pipeline, mean: WeightedPaths) -> None:
        self.pipeline, self.actions = pipeline, list(pipeline.kinds[0].alone)
        self.weights, self.ends = (self._array(of) for of in (mean.nodes, mean.ends))
        # Of paths that end with a backward or W: reductions follow the action before it.
        late = np.array([a in (LAST, "W", pipeline.backward) for a in self.actions])
        self.late = self.ends * late
        whole = np.array([a != "W" for a in self.actions])  # a unit may have no W
        self.reduced = (self.late * whole).sum(axis=1)

    def _array(self, of: Weights) -> np.ndarray:
        """Return weights by stage and action."""
        stages = range(self.pipeline.num_stages)
        return np.array([[of.get((s, a), 0.0) for a in self.actions] for s in stages])

    def least_us(self, after: bool, beside: set[str]) -> float:
        """after: paths end with the reductions of their last stage, in place of its last action.
        beside: actions whose times are those beside collectives."""
        weights = self.weights - self.late if after else self.weights
        spared = [self.pipeline.spared[a] if a in beside else 0.0 for a in self.actions]
        total = -float(weights.sum(axis=0) @ np.array(spared))
        for index, kind in enumerate(self.pipeline.kinds):
            us = np.array([(kind.beside if a in beside else kind.alone)[a] for a in self.actions])
            least = (weights @ us).min(axis=1) + kind.tail_us / len(self.pipeline.schedule)
            if after:
                least = least + kind.closing_us * self.reduced
            total += kind.count * (least[-index] if index < 2 else least.min())  # the ends' stages
        return float(total)
