"""The moments of a schedule at which a rank may hold most, whatever its stages weigh."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.schedule import Action, Schedule

Counts = dict[int, int]  # micro-batches by stage
# Micro-batches between F and B or I, those between I and W, and whether the running function is
# the last stage's.
Moment = tuple[Counts, Counts, bool]
_Key = tuple[tuple[tuple, tuple], bool]
Floats = NDArray[np.float64]


def peak_moments(
    schedule: Schedule, num_stages: int, most_at_last: bool
) -> tuple[tuple[Moment, ...], ...]:
    """Return by rank the moments that no other has all of.

    most_at_last: whether the functions of the last stage have more alive than those of the others.
    """
    return tuple(_of_rank(actions, num_stages, most_at_last) for actions in schedule)


def _of_rank(
    actions: tuple[Action, ...], num_stages: int, most_at_last: bool
) -> tuple[Moment, ...]:
    found: list[_Key] = []
    for moment in dict.fromkeys(_moments(actions, num_stages, most_at_last)):
        if not any(_within(moment, other) for other in found):
            found = [other for other in found if not _within(other, moment)]
            found.append(moment)
    return tuple(
        (dict(held), dict(waiting), more == most_at_last) for (held, waiting), more in found
    )


def _moments(actions: tuple[Action, ...], num_stages: int, most_at_last: bool) -> Iterator[_Key]:
    held: Counts = {}
    waiting: Counts = {}
    for a in actions:
        if a.kind == "F":
            held[a.stage] = held.get(a.stage, 0) + 1
            waiting.setdefault(a.stage, 0)
        elif a.kind in ("B", "I"):
            more = (a.stage == num_stages - 1) == most_at_last
            yield (tuple(sorted(held.items())), tuple(sorted(waiting.items()))), more
            held[a.stage] -= 1
            waiting[a.stage] += a.kind == "I"
        elif a.kind == "W":
            waiting[a.stage] -= 1


def _within(one: _Key, other: _Key) -> bool:
    """Whether a moment has no more than another of anything."""
    (counts, most), (others, other_most) = one, other
    pairs = [
        (count, dict(there).get(stage, 0))
        for here, there in zip(counts, others, strict=True)
        for stage, count in here
    ]
    return most <= other_most and all(count <= there for count, there in pairs)


@dataclass(frozen=True)
class MomentArrays:
    """Moments of all ranks. rank, ends: [moment], of which rank, and whether the running function
    is the last stage's. held, waiting: [moment, chunk, 1], micro-batches as in `Moment`. stages:
    [moment, chunk]."""

    rank: NDArray[np.int64]
    ends: NDArray[np.bool_]
    stages: NDArray[np.int64]
    held: Floats
    waiting: Floats


def moment_arrays(moments: Sequence[Sequence[Moment]], stage_ranks: Sequence[int]) -> MomentArrays:
    """Return the moments of ranks that have as many stages each. stage_ranks: of all stages."""
    stages = [[s for s, home in enumerate(stage_ranks) if home == r] for r in range(len(moments))]
    rows = [(rank, *moment) for rank, mine in enumerate(moments) for moment in mine]
    return MomentArrays(
        rank=np.array([rank for rank, *_ in rows]),
        ends=np.array([ends for *_, ends in rows]),
        stages=np.array([stages[rank] for rank, *_ in rows]),
        held=_counts([[held.get(s, 0) for s in stages[rank]] for rank, held, _, _ in rows]),
        waiting=_counts([[late.get(s, 0) for s in stages[rank]] for rank, _, late, _ in rows]),
    )


def _counts(rows: list[list[int]]) -> Floats:
    return np.array(rows, dtype=float)[:, :, None]
