"""The floor of a step against stages of any sizes."""

from itertools import accumulate
from random import Random

import pytest

from meshwright.planner.bounds.floor import Floor, filled_us


def _step_us(stages: list[float], m: int, share: float) -> float:
    """Return the longest of what stages take, each after a share of those ahead of it."""
    ahead = accumulate(stages, initial=0.0)
    return max(m * us + share * before for us, before in zip(stages, ahead, strict=False))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 6), (4, 1), (4, 8), (16, 8)])
def test_no_stages_are_faster_than_filled_us(n: int, m: int, share: float) -> None:
    """Stages that all end at once are as fast; none of a hundred others is faster."""
    random = Random(0)
    for _ in range(100):
        stages = [random.uniform(0.1, 2.0) for _ in range(n)]
        least = filled_us(sum(stages), n, m, share)
        assert least <= _step_us(stages, m, share) * (1 + 1e-9)
    end, equal = 100.0, list[float]()
    for _ in range(n):
        equal.append((end - share * sum(equal)) / m)
    assert filled_us(sum(equal), n, m, share) == pytest.approx(end)


def test_a_small_share_is_no_rounding() -> None:
    assert 4.0 <= filled_us(1.0, 16, 64, 1e-9) <= 4.0 * (1 + 1e-9)
    assert filled_us(1.0, 16, 64, 1e-17) == pytest.approx(4.0)


def test_collectives_count_where_they_take_longer() -> None:
    assert Floor(2.0, 0.5, 3.0, 1.0).step_us(1, 4, 0.0) == 9.0
    assert Floor(2.0, 0.5, 30.0, 1.0).step_us(1, 4, 0.0) == 31.0
