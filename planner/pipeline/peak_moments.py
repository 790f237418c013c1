"""The moments of a schedule at which a rank may hold most, whatever its stages weigh."""

from collections.abc import Iterator

from meshwright.ir.schedule import Action, Schedule

Counts = dict[int, int]  # micro-batches by stage
# Micro-batches between F and B or I, those between I and W, and whether the running function is
# the last stage's.
Moment = tuple[Counts, Counts, bool]
_Key = tuple[tuple[tuple, tuple], bool]


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
