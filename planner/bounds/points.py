"""Points of the linear program of a pipeline (lp.py): how long a step is where its actions and
reductions take what they do there."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ..pipeline.closings import Node
from ..pipeline.critical_path import Path, Timed, Waits

INF = float("inf")

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Point:
    """Durations of actions in us, what reductions take, and by stage what its units take.

    left_us: by rank, reductions left when its last action is done. closing_us: by stage, the last
    reductions of all its units, and of those that W completes. end_us: the longest path.
    """

    durations: Mapping[Node, float]
    stage_us: tuple[float, ...]
    left_us: Mapping[int, float]
    closing_us: Mapping[tuple[int, bool], float]
    end_us: float = INF

    def toward(self, other: "Point", step: float) -> "Point":
        """Return the point between this one and another, its longest path not known."""
        pairs = zip(self.stage_us, other.stage_us, strict=True)
        return Point(
            _between(self.durations, other.durations, step),
            tuple((1 - step) * a + step * b for a, b in pairs),
            _between(self.left_us, other.left_us, step),
            _between(self.closing_us, other.closing_us, step),
        )

    def timed(self, waits: Waits, send_us: tuple[float, ...]) -> "TimedPoint":
        """Return when its actions end."""
        return TimedPoint(self, waits, waits.timed(self.durations, send_us))


@dataclass(frozen=True)
class TimedPoint:
    """A point, and when its actions end."""

    point: Point
    waits: Waits
    timed: Timed

    def longest(self) -> list[tuple[float, int]]:
        """Return of each rank the longest time until reductions are done, in us, with the action
        that they start from or its last one; the longest first."""
        each = [max((self._until_us(i), i) for i in mine) for mine in self.waits.closings]
        return sorted(each, key=lambda one: (-one[0], one[1]))

    def path(self, index: int) -> Path:
        """Return the longest path to an action."""
        return self.timed.path(index)

    def _until_us(self, index: int) -> float:
        """Return the time until the reductions that start from an action are done, or the action
        and what is left after it."""
        point, ending = self.point, self.waits.endings[index]
        end_us = self.timed.end_us(index)
        done_us = end_us + point.left_us.get(ending.rank, 0.0)
        start_us = end_us - point.durations[self.waits.nodes[index]]
        return max(done_us, start_us + sum(point.closing_us.get(x, 0.0) for x in ending.closes))


def _between(one: Mapping[Key, float], other: Mapping[Key, float], step: float) -> dict[Key, float]:
    return {key: (1 - step) * one[key] + step * us for key, us in other.items()}
