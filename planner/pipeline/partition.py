"""Pipeline cuts: contiguous stages whose slowest is as fast as can be.

For stage times t and m micro-batches a step takes sum t + (m - 1) max t (1F1B and GPipe, transfers
aside), so the slowest stage decides. A limit v on it is feasible when packing stages greedily, each
as far as v and memory allow, uses all units: a stage that ends later leaves less for those after.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import nextafter

from meshwright.ir.errors import PlanError

from ..units import counted

# By stage: a function that takes the indices of its units in order, and returns how much longer the
# units so far must take to fit a rank's memory; inf where they cannot.
MemoryCost = Callable[[int], Callable[[int], float]]


def cut_stages(
    costs: Sequence[float], num_stages: int, pinned: str | None, even: bool = False
) -> list[int]:
    """The stage of each instance; ties cut earliest, or as evenly as they can.

    costs: per instance, any unit. pinned: first instance of stages 1.., e.g. "5,9". even: for
    schedules that give a rank several stages, whose sum decides.
    """
    if num_stages > len(costs):
        raise PlanError(
            f"{num_stages} stages (pp times chunks), but the model has "
            f"{counted(len(costs), 'segment')}; lower one of them"
        )
    if pinned:
        starts = _pinned(pinned, num_stages, len(costs))
    else:
        found = balanced(costs, num_stages)
        assert found is not None
        starts = _even(costs, found) if even else found
    return stages_of(starts, len(costs))


def stages_of(starts: Sequence[int], count: int) -> list[int]:
    """The stage of each of `count` units, from the first unit of every stage."""
    return [bisect_right(starts, index) - 1 for index in range(count)]


def check_cuts(text: str, num_stages: int) -> list[int]:
    """Return the first instance of every stage, as pinned.

    Raises PlanError where the text gives no cuts into `num_stages` stages of any model.
    """
    try:
        starts = [0, *(int(n) for n in text.split(","))]
    except ValueError:
        raise PlanError(f"cuts={text}: expected instance numbers such as 5,9") from None
    rising = all(a < b for a, b in zip(starts, starts[1:], strict=False))
    if len(starts) != num_stages or not rising:
        raise PlanError(
            f"cuts={text}: expected {num_stages - 1} rising numbers from 1 on, as there are "
            f"{num_stages} stages (pp times chunks)"
        )
    return starts


def _pinned(text: str, num_stages: int, count: int) -> list[int]:
    starts = check_cuts(text, num_stages)
    if starts[-1] >= count:
        raise PlanError(
            f"cuts={text}: expected {num_stages - 1} rising numbers between 1 and {count - 1}"
        )
    return starts


def balanced(
    costs: Sequence[float], num_stages: int, memory: MemoryCost | None = None
) -> list[int] | None:
    """First unit of every stage of the best cuts; None where none fits.

    Earliest among equals, unless those do not fit.
    """
    found = _pack(costs, num_stages, float("inf"), memory) if num_stages <= len(costs) else None
    if found is None or num_stages == 1:
        return found
    low, limit = 0.0, _slowest(costs, found, memory)
    while limit - low > 1e-6 * limit:
        middle = (low + limit) / 2
        tried = _pack(costs, num_stages, middle, memory)
        low = middle if tried is None else low
        found, limit = (found, limit) if tried is None else (tried, _slowest(costs, tried, memory))
    while (tried := _pack(costs, num_stages, nextafter(limit, 0.0), memory)) is not None:
        found, limit = tried, _slowest(costs, tried, memory)
    earliest = _earliest(costs, num_stages, limit)
    return earliest if memory is None or _within(earliest, costs, memory, limit) else found


def _pack(
    costs: Sequence[float], num_stages: int, limit: float, memory: MemoryCost | None
) -> list[int] | None:
    """Stages packed in order, each as far as it may; None when units are left over.

    Where a stage has no memory for the first unit that is left to it, the stages before it must end
    earlier, all of them: every stage has a unit, and that one belongs to a later stage.
    """
    ends = [len(costs) - (num_stages - stage - 1) for stage in range(num_stages)]
    while True:
        starts, end = _pack_up_to(costs, ends, limit, memory)
        if end != "no memory":
            return starts if end == "full" else None
        stage = len(starts) - 1
        if stage == 0 or starts[stage] <= stage:
            return None
        for before in range(stage):
            ends[before] = min(ends[before], starts[stage] - (stage - before))


def _pack_up_to(
    costs: Sequence[float], ends: Sequence[int], limit: float, memory: MemoryCost | None
) -> tuple[list[int], str]:
    """First units of the stages, each ending at `ends` at the latest, and how packing them ended:
    "full", "left over", or "no memory" for the first unit of the last one."""
    starts: list[int] = []
    start = 0
    for stage, end in enumerate(ends):
        starts.append(start)
        stop, total = start, 0.0
        extra, more = memory(stage) if memory is not None else no_memory_cost, 0.0
        while stop < end:
            total += costs[stop]
            more = extra(stop)
            if more == float("inf") or total + more > limit:
                break
            stop += 1
        if stop == start:
            return starts, "no memory" if more == float("inf") else "left over"
        start = stop
    return starts, "full" if start == len(costs) else "left over"


def no_memory_cost(index: int) -> float:
    return 0.0


def _slowest(costs: Sequence[float], starts: Sequence[int], memory: MemoryCost | None) -> float:
    return max(_stage_totals(starts, costs, memory))


def _stage_totals(
    starts: Sequence[int], costs: Sequence[float], memory: MemoryCost | None
) -> Iterator[float]:
    """Return by stage what it takes in the memory it has."""
    stops = [*starts[1:], len(costs)]
    for stage, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        extra = memory(stage) if memory is not None else no_memory_cost
        more = [extra(index) for index in range(start, stop)]
        yield _total(costs[start:stop]) + more[-1]


def _total(costs: Sequence[float]) -> float:
    total = 0.0  # in the order of _pack, to the last bit; sum() rounds otherwise
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


def _even(costs: Sequence[float], starts: Sequence[int]) -> list[int]:
    """Return cuts whose slowest stage is no slower than that of `starts`, each as near as possible
    to an equal share of the costs."""
    limit, ahead = _slowest(costs, starts, None), [0.0, *accumulate(costs)]
    first = _earliest(costs, len(starts), limit)
    found = [0]
    for stage in range(1, len(starts)):
        last = len(costs) - (len(starts) - stage)
        totals = enumerate(accumulate(costs[found[-1] : last]), start=found[-1] + 1)
        within = (start for start, total in totals if start >= first[stage] and total <= limit)
        share = ahead[-1] * stage / len(starts)
        found.append(min(within, key=lambda start: abs(ahead[start] - share)))
    return found


def _within(
    starts: Sequence[int], costs: Sequence[float], memory: MemoryCost, limit: float
) -> bool:
    return all(total <= limit for total in _stage_totals(starts, costs, memory))
