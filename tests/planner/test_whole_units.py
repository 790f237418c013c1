"""The bound of the busiest rank against every way to cut units into runs, one a stage."""

from collections.abc import Sequence
from itertools import combinations
from random import Random

import pytest

from meshwright.planner.bounds.whole_units import CLOSE, busiest_us

V, INTERLEAVED = (0, 1, 1, 0), (0, 1, 0, 1)


def least_us(times: Sequence[float], stage_ranks: Sequence[int]) -> float:
    """Return the shortest time of the rank that takes longest, over all cuts."""
    found = []
    for cuts in combinations(range(1, len(times)), len(stage_ranks) - 1):
        ends = (0, *cuts, len(times))
        load = dict.fromkeys(stage_ranks, 0.0)
        for rank, begin, end in zip(stage_ranks, ends, ends[1:], strict=False):
            load[rank] += sum(times[begin:end])
        found.append(max(load.values()))
    return min(found)


def drawn(random: Random) -> list[float]:
    """Return times of units: layers of two units with something before and behind them, a few of
    another length; sometimes all of any length."""
    short, long = random.choice([(1.0, 2.7), (1.0, 1.0), (2.0, 5.0), (1.0, 1.3)])
    inner = [(short, long)[k % 2] for k in range(random.randint(4, 9))]
    for place in random.sample(range(len(inner)), random.choice([0, 0, 1])):
        inner[place] = random.choice([short, long, 1.5 * long])
    times = [random.choice([0.1, 1.0, 3.0]), *inner, random.choice([0.1, 2.0, 4.0])]
    return [random.uniform(1, 4) for _ in times] if random.random() < 0.2 else times


@pytest.mark.parametrize("stage_ranks", [V, INTERLEAVED, (0, 1, 2, 2, 1, 0), (0, 1, 2, 0, 1, 2)])
def test_it_encloses_every_cut(stage_ranks: tuple[int, ...]) -> None:
    """It is never more than the best cut takes, never less than the mean, and equal to the former
    in at least half of the cases."""
    random, exact = Random(0), 0
    for _ in range(60):
        times = drawn(random)
        bound, best = busiest_us(times, stage_ranks), least_us(times, stage_ranks)
        mean = sum(times) / (1 + max(stage_ranks))
        assert mean * (1 - 1e-9) <= bound <= best * (1 + 1e-9)
        exact += bound >= best * (1 - 2 * CLOSE)
    assert exact >= 30


def test_it_is_the_mean_of_few_units_and_of_units_that_take_no_time() -> None:
    assert busiest_us([1.0, 2.0], (0, 1)) == 1.5
    assert busiest_us([1.0, 0.0, 2.0, 1.0], (0, 1)) == 2.0


def test_sixteen_ranks_of_five_layers_and_one_that_has_the_head() -> None:
    """80 layers of 5.4 and 14.2 ms and a head of 20.5: five layers and one attention more would be
    103.1, but a rank of two runs has as many attentions as FFNs, but for two. So a rank has six
    FFNs and four attentions, 7% above the mean."""
    times = [2.4, *[5.4, 14.2] * 80, 20.5]
    bound = busiest_us(times, (*range(16), *reversed(range(16))))
    assert bound == pytest.approx(6 * 14.2 + 4 * 5.4, rel=2 * CLOSE)
    assert bound > 1.07 * sum(times) / 16
