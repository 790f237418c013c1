"""Pipeline cuts: contiguous stages whose slowest is as fast as can be."""

from functools import cache
from itertools import pairwise

from meshwright.ir.errors import PlanError


def cut_stages(costs: list[float], num_stages: int, pinned: str | None) -> list[int]:
    """The stage of each instance, by dynamic programming over cuts; ties cut earliest.

    costs: per instance, any unit. pinned: first instance of stages 1.., e.g. "5,9".
    """
    if num_stages > len(costs):
        raise PlanError(
            f"pp={num_stages} stages, but the model has {len(costs)} segments; lower pp"
        )
    starts = _pinned(pinned, num_stages, len(costs)) if pinned else _balanced(costs, num_stages)
    return [sum(index >= start for start in starts[1:]) for index in range(len(costs))]


def _pinned(text: str, num_stages: int, count: int) -> list[int]:
    try:
        starts = [0, *(int(n) for n in text.split(","))]
    except ValueError:
        raise PlanError(f"cuts={text}: expected instance numbers such as 5,9") from None
    rising = all(a < b for a, b in pairwise(starts))
    if len(starts) != num_stages or not rising or starts[-1] >= count:
        raise PlanError(
            f"cuts={text}: expected {num_stages - 1} rising numbers between 1 and {count - 1}"
        )
    return starts


def _balanced(costs: list[float], num_stages: int) -> list[int]:
    prefix = [0.0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)

    @cache
    def best(start: int, stages: int) -> tuple[float, tuple[int, ...]]:
        if stages == 1:
            return prefix[-1] - prefix[start], (start,)
        options = []
        for stop in range(start + 1, len(costs) - stages + 2):
            rest, starts = best(stop, stages - 1)
            options.append((max(prefix[stop] - prefix[start], rest), (start, *starts)))
        return min(options)

    return list(best(0, num_stages)[1])
