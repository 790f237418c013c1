"""Skips the repetitions of a schedule that take what the last one took.

Streams only wait for one another. Where all of them stand to each other as they did a repetition
ago, and the same is under way, the next repetition takes as long as the last: all that are left are
passed at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..pipeline.repeats import Repeats

if TYPE_CHECKING:
    from .simulator import _Rank, _Run

ROUNDED_US = 1e-6  # by which times may differ
Advance = Callable[[Sequence[int]], bool]  # to the actions of each rank; whether all are reached


@dataclass(frozen=True)
class _State:
    """Where a run stands: how many actions of each rank are done; what is under way, of
    micro-batches counted from the repetition's, and times in us. used: busy and exposed us of every
    rank."""

    position: tuple[int, ...]
    under_way: list[tuple]
    times: list[float]
    used: list[float]


def skip(run: "_Run", repeats: Repeats, position: list[int], advance: Advance) -> None:
    """Run repetitions until one takes what the last took, and pass all others.

    The first rank stops where one ends, the others where they wait for it.
    """
    last, checked = None, 1
    ends = [len(actions) for actions in run.model.schedule[1:]]
    for repetition in range(repeats.times):
        stop = repeats.first[0] + repetition * repeats.length[0]
        advance([stop, *ends])
        if position[0] != stop or repeats.left(position) < 1:
            return
        if repetition not in (checked - 1, checked):
            continue
        state = _state(run, position, repeats.begun + repetition * repeats.microbatches)
        if last and repetition == checked:
            checked = 2 * checked + 1  # ever farther apart: most are soon alike, or never
            if (us := _alike(repeats, last, state)) is not None:
                left = repeats.left(position)
                _pass(run, last, state, left, us, left * repeats.microbatches)
                position[:] = repeats.later(position, left)
                return
        last = state


def _alike(repeats: Repeats, last: _State, state: _State) -> float | None:
    """Return how long the repetition between two states took, where all has moved by that."""
    repeated = repeats.has_begun(last.position)
    repeated = repeated and repeats.later(last.position, 1) == list(state.position)
    if not repeated or last.under_way != state.under_way:
        return None
    moved = [now - then for now, then in zip(state.times, last.times, strict=True)]
    return moved[0] if max(moved) - min(moved) <= ROUNDED_US else None


def _state(run: "_Run", position: Sequence[int], microbatch: int) -> _State:
    """Return where a run stands. What is over counts as just over: nobody waits for it."""
    items = sorted(_items(run, microbatch))
    now = [rank.compute for rank in run.ranks]
    times = [*now, *(max(us, now[rank]) for (rank, *_), us in items)]
    used = [us for rank in run.ranks for us in (rank.busy, rank.exposed)]
    return _State(tuple(position), [what for what, _ in items], times, used)


def _items(run: "_Run", microbatch: int) -> Iterator[tuple[tuple, float]]:
    """Yield all that may be waited for: the rank that waits, what it is, and its end in us."""
    for number, rank in enumerate(run.ranks):
        for name in ("comm", "copied_out", "copied_back"):
            yield (number, name, 0, 0), getattr(rank, name)
        for (peer, kind), us in rank.out.items():
            yield (number, "out " + kind, peer, 0), us
        for unit, us in rank.leaving.items():
            yield (number, "leaving", unit, 0), us
        for place, span in enumerate(s for s in rank.traffic if s[1] > rank.compute):
            yield (number, "from", place, 0), span[0]
            yield (number, "to", place, 0), span[1]
        for stage, units in rank.stages.items():
            for unit, us in units.ready.items():
                yield (number, f"ready {stage}", unit, 0), us
            for name in ("away", "back"):
                for (unit, of), us in getattr(units, name).items():
                    yield (number, f"{name} {stage}", unit, of - microbatch), us
    for (stage, kind, of), us in run.mail.items():
        yield (run.model.stage_ranks[stage], "mail " + kind, stage, of - microbatch), us


def _pass(
    run: "_Run", last: _State, state: _State, times: int, us: float, microbatches: int
) -> None:
    """Move all to where it stands after so many repetitions of so many us."""
    used = [times * (now - then) for now, then in zip(state.used, last.used, strict=True)]
    for rank, busy, exposed in zip(run.ranks, used[::2], used[1::2], strict=True):
        rank.busy += busy
        rank.exposed += exposed
        _later(rank, times * us, microbatches)
    run.mail = {(s, k, of + microbatches): at + times * us for (s, k, of), at in run.mail.items()}


def _later(rank: "_Rank", us: float, microbatches: int) -> None:
    for name in ("compute", "comm", "finish", "copied_out", "copied_back"):
        setattr(rank, name, getattr(rank, name) + us)
    rank.traffic = type(rank.traffic)((start + us, end + us) for start, end in rank.traffic)
    rank.out = {key: at + us for key, at in rank.out.items()}
    rank.leaving = {unit: at + us for unit, at in rank.leaving.items()}
    for stage in rank.stages.values():
        stage.ready = {unit: at + us for unit, at in stage.ready.items()}
        for name in ("away", "back"):
            moved = getattr(stage, name).items()
            setattr(stage, name, {(u, of + microbatches): at + us for (u, of), at in moved})
        stage.left = {kind: count - microbatches for kind, count in stage.left.items()}
