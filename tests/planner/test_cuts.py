"""Cuts against brute force over all of them."""

from itertools import combinations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.planner.bounds.partition_bound import COARSE, LeastTimes, pipeline_bound
from meshwright.planner.pipeline.partition import balanced, cut_stages, stages_of

COSTS = st.lists(st.integers(1, 9).map(float) | st.floats(0.1, 10), min_size=1, max_size=8)


def all_cuts(count: int, num_stages: int):
    for inner in combinations(range(1, count), num_stages - 1):
        yield [0, *inner]


def times(costs: list[float], starts: list[int]) -> list[float]:
    found = []
    for start, stop in zip(starts, [*starts[1:], len(costs)], strict=True):
        total = 0.0
        for cost in costs[start:stop]:
            total += cost
        found.append(total)
    return found


@given(costs=COSTS, num_stages=st.integers(1, 8))
@settings(max_examples=300, deadline=None)
def test_the_slowest_stage_is_the_fastest_possible_and_ties_cut_earliest(costs, num_stages) -> None:
    found = balanced(costs, num_stages)
    options = list(all_cuts(len(costs), num_stages))
    if not options:
        assert found is None
        return
    assert found == min(options, key=lambda starts: (max(times(costs, starts)), starts))


@given(
    costs=COSTS,
    num_stages=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 5), min_size=8, max_size=8),
    free=st.lists(st.integers(1, 14), min_size=5, max_size=5),
)
@example(costs=[1.0] * 5, num_stages=4, sizes=[1, 1, 1, 3, 1, 1, 1, 1], free=[2, 2, 2, 4, 4])
@settings(max_examples=300, deadline=None)
def test_cuts_within_growing_memory_are_as_fast_as_any_that_fit(
    costs, num_stages, sizes, free
) -> None:
    capacity = sorted(free)  # later stages hold fewer micro-batches, so they have more memory

    def takes(stage: int):
        held = 0

        def take(index: int) -> float:
            nonlocal held
            held += sizes[index]
            return 0.0 if held <= capacity[stage] else float("inf")

        return take

    def fits(starts: list[int]) -> bool:
        stops = [*starts[1:], len(costs)]
        return all(
            sum(sizes[a:b]) <= capacity[s]
            for s, (a, b) in enumerate(zip(starts, stops, strict=True))
        )

    found = balanced(costs, num_stages, takes)
    options = [c for c in all_cuts(len(costs), num_stages) if fits(c)]
    if not options:
        assert found is None
        return
    assert found is not None and fits(found)
    assert max(times(costs, found)) == min(max(times(costs, c)) for c in options)


@given(
    stages=st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=1, max_size=6),
    num_stages=st.integers(1, 4),
    m=st.integers(1, 6),
)
@settings(max_examples=200, deadline=None)
def test_pipeline_bounds_hold_for_every_cut(longest_path, stages, num_stages, m) -> None:
    if num_stages > len(stages):
        return
    times = [f + b for f, b in stages]
    units = LeastTimes.of([[both] for both in stages], [0.0] * len(stages))
    bounds = {
        "1f1b": pipeline_bound(units, num_stages, m, lambda s: min(m, num_stages - s)),
        "gpipe": pipeline_bound(units, num_stages, m, lambda s: 1),
    }
    for name, bound in bounds.items():
        for starts in all_cuts(len(times), num_stages):
            stops = [*starts[1:], len(times)]
            merged = [
                (sum(f for f, _ in stages[a:b]), sum(b for _, b in stages[a:b]))
                for a, b in zip(starts, stops, strict=True)
            ]
            assert bound <= longest_path(name, merged, m, 0.0) * (1 + 1e-9)


@given(
    stages=st.lists(st.floats(0.1, 9), min_size=3, max_size=9),
    m=st.integers(1, 6),
    share=st.floats(0.3, 1.5),
)
@settings(max_examples=100, deadline=None)
def test_what_is_enough_changes_no_bound_below_it(stages, m, share) -> None:
    """From it on a bound is between it and what could be proven, and close to the latter."""
    units = LeastTimes.of([[(us, 2 * us)] for us in stages], [0.0] * len(stages))
    given_ = units, 3, m, lambda s: min(m, 3 - s)
    exact = pipeline_bound(*given_)
    enough_us = share * exact
    found = pipeline_bound(*given_, enough_us=enough_us)
    if exact < enough_us:
        assert found == exact
    else:
        assert max(enough_us, (1 - COARSE) * exact) <= found * (1 + 1e-9) <= exact * (1 + 2e-5)


def test_pinned_cuts_are_taken_as_they_are() -> None:
    assert cut_stages([1.0] * 4, 2, "1") == [0, 1, 1, 1]
    assert stages_of([0, 3], 4) == [0, 0, 0, 1]


@given(costs=COSTS, num_stages=st.integers(1, 8))
@settings(max_examples=300, deadline=None)
def test_even_cuts_have_no_slower_stage(costs, num_stages) -> None:
    if num_stages > len(costs):
        return
    stages = cut_stages(costs, num_stages, None, even=True)
    starts = [stages.index(stage) for stage in range(num_stages)]
    assert stages_of(starts, len(costs)) == stages
    found = balanced(costs, num_stages)
    assert found is not None and max(times(costs, starts)) == max(times(costs, found))


@given(count=st.integers(1, 200), num_stages=st.integers(1, 24))
@settings(max_examples=200, deadline=None)
def test_even_cuts_of_equal_units_differ_by_one(count, num_stages) -> None:
    """Cut earliest, all but the first stages would have as many as the slowest may have."""
    if num_stages > count:
        return
    stages = cut_stages([1.0] * count, num_stages, None, even=True)
    sizes = [stages.count(stage) for stage in range(num_stages)]
    assert max(sizes) - min(sizes) <= 1
