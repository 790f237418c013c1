"""Pipeline cuts: contiguous stages whose slowest is as fast as can be.

For stage times t and m micro-batches a step takes sum t + (m - 1) max t (1F1B and GPipe, transfers
aside), so the slowest stage decides. A limit v on it is feasible when filling stages greedily, each
as far as v and memory allow, uses all units: a stage that ends later leaves less for those after.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nextafter

from meshwright.ir.errors import PlanError

# Of a stage: a function that takes its units' indices in order and says whether each still fits.
Room = Callable[[int], Callable[[int], bool]]


def cut_stages(costs: Sequence[float], num_stages: int, pinned: str | None) -> list[int]:
    """The stage of each instance; ties cut earliest.

    costs: per instance, any unit. pinned: first instance of stages 1.., e.g. "5,9".
    """
    if num_stages > len(costs):
        raise PlanError(
            f"{num_stages} stages (pp times chunks), but the model has {len(costs)} segments; "
            "lower one of them"
        )
    if pinned:
        starts = _pinned(pinned, num_stages, len(costs))
    else:
        found = balanced(costs, num_stages)
        assert found is not None
        starts = found
    return stages_of(starts, len(costs))


def stages_of(starts: Sequence[int], count: int) -> list[int]:
    """The stage of each of `count` units, from the first unit of every stage."""
    return [sum(index >= start for start in starts[1:]) for index in range(count)]


def _pinned(text: str, num_stages: int, count: int) -> list[int]:
    try:
        starts = [0, *(int(n) for n in text.split(","))]
    except ValueError:
        raise PlanError(f"cuts={text}: expected instance numbers such as 5,9") from None
    rising = all(a < b for a, b in zip(starts, starts[1:], strict=False))
    if len(starts) != num_stages or not rising or starts[-1] >= count:
        raise PlanError(
            f"cuts={text}: expected {num_stages - 1} rising numbers between 1 and {count - 1}"
        )
    return starts


def balanced(costs: Sequence[float], num_stages: int, room: Room | None = None) -> list[int] | None:
    """First unit of every stage of the best cuts; None where none fits.

    Earliest among equals, unless those do not fit.
    """
    found = _fill(costs, num_stages, float("inf"), room) if num_stages <= len(costs) else None
    if found is None or num_stages == 1:
        return found
    low, limit = 0.0, _slowest(costs, found)
    while limit - low > 1e-6 * limit:
        middle = (low + limit) / 2
        tried = _fill(costs, num_stages, middle, room)
        low = middle if tried is None else low
        found, limit = (found, limit) if tried is None else (tried, _slowest(costs, tried))
    while (tried := _fill(costs, num_stages, nextafter(limit, 0.0), room)) is not None:
        found, limit = tried, _slowest(costs, tried)
    earliest = _earliest(costs, num_stages, limit)
    return earliest if room is None or _has_room(earliest, len(costs), room) else found


def _fill(
    costs: Sequence[float], num_stages: int, limit: float, room: Room | None
) -> list[int] | None:
    """Stages filled in order, each as far as it may; None when units are left over."""
    starts, start = [], 0
    for stage in range(num_stages):
        starts.append(start)
        stop, total = start, 0.0
        takes = room(stage) if room is not None else None
        while stop < len(costs) - (num_stages - stage - 1):
            total += costs[stop]
            if total > limit or (takes is not None and not takes(stop)):
                break
            stop += 1
        if stop == start:
            return None
        start = stop
    return starts if start == len(costs) else None


def _slowest(costs: Sequence[float], starts: Sequence[int]) -> float:
    stops = [*starts[1:], len(costs)]
    return max(_total(costs[a:b]) for a, b in zip(starts, stops, strict=True))


def _total(costs: Sequence[float]) -> float:
    total = 0.0  # in the order of _fill, to the last bit; sum() rounds otherwise
    for cost in costs:
        total += cost
    return total


def _earliest(costs: Sequence[float], num_stages: int, limit: float) -> list[int]:
    """The lexicographically first cuts within a limit that can be met.

    From the back: each stage starts at the first unit from which it can take all that the stages
    after it do not.
    """
    floors, stop = [len(costs)], len(costs)
    for stage in reversed(range(num_stages)):
        start = stop
        while start > stage and _total(costs[start - 1 : stop]) <= limit:
            start -= 1
        floors.append(start)
        stop = start
    starts = [0]
    for floor in floors[-2:0:-1]:
        starts.append(max(starts[-1] + 1, floor))
    return starts


def _has_room(starts: Sequence[int], count: int, room: Room) -> bool:
    stops = [*starts[1:], count]
    for stage, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        takes = room(stage)
        if not all(takes(index) for index in range(start, stop)):
            return False
    return True


@dataclass(frozen=True)
class Passes:
    """Times of one micro-batch through each unit, and the reductions of its gradients that start
    in its last backward (0 where they run after every one)."""

    forward: Sequence[float]
    backward: Sequence[float]
    reduce: Sequence[float]


def shortest_pipeline(
    units: Passes,
    num_stages: int,
    num_microbatches: int,
    warmup: Callable[[int], int],
    room: Room | None = None,
) -> float:
    """What no cuts into contiguous stages that have room can beat, in the unit of the times.

    warmup: by stage, the forwards w_s before its first backward, which cannot come before the first
    micro-batch has passed all later stages (m for GPipe does not delay it: 1). With t = f + b of a
    stage, P the sum of t ahead of it, T of all, R its reductions:

        step >= m t + P
        step >= T + (m - 1) t - (w - 1) f
        step >= T + (m - 1) t - (w - 1) f - P - b + R        from the start of its last backward
    """
    m = num_microbatches
    total = sum(units.forward) + sum(units.backward)
    low, high = total, m * total + sum(units.reduce)
    while high - low > 1e-6 * high:
        limit = (low + high) / 2
        if _passes(units, [warmup(s) for s in range(num_stages)], m, total, limit, room):
            high = limit
        else:
            low = limit
    return low


def shortest_start(
    forward: Sequence[float], both: Sequence[float], num_stages: int, num_microbatches: int
) -> float:
    """What no cuts beat when only the start of a stage waits for those before it.

    forward, both: of one micro-batch through each unit, both with its backward. A stage of t starts
    after the forwards P ahead of it: step >= m t + P.
    """
    low, high = sum(forward), (num_microbatches + 1) * sum(both)
    while high - low > 1e-6 * high:
        limit = (low + high) / 2
        if _starts_within(forward, both, num_stages, num_microbatches, limit):
            high = limit
        else:
            low = limit
    return low


def _starts_within(
    forward: Sequence[float], both: Sequence[float], num_stages: int, m: int, limit: float
) -> bool:
    """Whether stages filled in order, each as far as it may, take all units within a limit."""
    before, index = 0.0, 0
    for _ in range(num_stages):
        busy = ahead = 0.0
        while index < len(both) and m * (busy + both[index]) + before <= limit:
            busy += both[index]
            ahead += forward[index]
            index += 1
        before += ahead
    return index == len(both)


def _passes(
    units: Passes, warmups: list[int], m: int, total: float, limit: float, room: Room | None
) -> bool:
    """Whether stages filled in order, each as far as it may, take all units within a limit."""
    before, index, count = 0.0, 0, len(units.forward)
    for stage, warmup in enumerate(warmups):
        busy = waits = tail = 0.0  # of the stage: t, (m - 1) t - (w - 1) f, R - b
        takes = room(stage) if room is not None else None
        while index < count:
            f, b = units.forward[index], units.backward[index]
            busy += f + b
            waits += (m - 1) * (f + b) - (warmup - 1) * f
            tail += units.reduce[index] - b
            late = max(waits, waits + tail - before)
            if m * busy + before > limit or late > limit - total:
                busy -= f + b
                break
            if takes is not None and not takes(index):
                busy -= f + b
                break
            index += 1
        before += busy
        if index == count:
            return True
    return False
