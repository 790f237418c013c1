"""The part of a schedule that repeats: the same actions of later micro-batches, on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.ir.schedule import Action, Schedule

BACKWARDS = ("B", "I")
_LEAST = 4  # repetitions, below which nothing is gained


@dataclass(frozen=True)
class Repeats:
    """By rank, `first`: the actions before what repeats, and `length`: those of one repetition.

    times: of it. microbatches: that a repetition goes on by. begun: the micro-batch whose backward
    on each rank's first stage ends what is before.
    """

    first: tuple[int, ...]
    length: tuple[int, ...]
    times: int
    microbatches: int
    begun: int

    def has_begun(self, position: Sequence[int]) -> bool:
        """Return whether every rank has done so many actions that they repeat."""
        return all(done >= first for done, first in zip(position, self.first, strict=True))

    def left(self, position: Sequence[int]) -> int:
        """Return the repetitions that every rank has before it. position: actions done by rank."""
        each = zip(position, self.first, self.length, strict=True)
        return min((first + self.times * length - done) // length for done, first, length in each)

    def later(self, position: Sequence[int], times: int) -> list[int]:
        """Return by rank the actions that are done after so many repetitions more."""
        pairs = zip(position, self.length, strict=True)
        return [done + times * length for done, length in pairs]


def repeats_of(schedule: Schedule, num_microbatches: int) -> Repeats | None:
    """Return what a schedule repeats; None where that is too little.

    The last micro-batches are left out: their backwards reduce gradients.
    """
    ranks = len(schedule)
    for step in (1, ranks):
        begun = 3 * ranks + step
        times = (num_microbatches - 2 * (ranks + step) - begun) // step
        if times < _LEAST:
            continue
        found = [_of_rank(actions, num_microbatches, step, begun) for actions in schedule]
        stops = [one for one in found if one]
        if len(stops) == ranks and all(
            _goes_on(actions, *one, times, step)
            for actions, one in zip(schedule, stops, strict=True)
        ):
            first, length = zip(*stops, strict=True)
            return Repeats(first, length, times, step, begun)
    return None


def _of_rank(
    actions: tuple[Action, ...], num_microbatches: int, step: int, begun: int
) -> tuple[int, int] | None:
    """Return the actions before a repetition and those of one; None where they are not whole."""
    length, rest = divmod((len(actions) - 1) * step, num_microbatches)
    stage = min(action.stage for action in actions[:-1])
    ends = (
        index
        for index, a in enumerate(actions)
        if a.kind in BACKWARDS and (a.stage, a.microbatch) == (stage, begun)
    )
    end = next(ends, None)
    if rest or end is None:
        return None
    sent = actions[end + 1].kind.startswith("SEND")
    return end + 1 + sent, length


def _goes_on(actions: tuple[Action, ...], first: int, length: int, times: int, step: int) -> bool:
    """Return whether each repetition is the one before it, of later micro-batches."""
    stop = first + times * length
    if stop >= len(actions):
        return False
    what = [(a.kind, a.stage) for a in actions[first:stop]]
    counts = np.array([a.microbatch for a in actions[first:stop]])
    later = counts[length:] - counts[:-length] == step
    return what[length:] == what[:-length] and bool(later.all())
