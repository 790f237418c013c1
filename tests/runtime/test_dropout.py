"""What falls by numbered draws: the bits, their rate, their independence, and shards of them."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from dropout_reference import falls, joined, pair
from torch import Tensor

from meshwright.runtime.engine import collectives
from meshwright.runtime.engine.inputs import step_draws
from meshwright.runtime.engine.kernels.dropout import dropout, dropout_keys, row_keys

ROWS = torch.arange(48)
SHAPE = (48, 96, 40)  # 184,320 draws
LARGEST = 4.5  # deviations of a count from what chance gives; of 40 counts here one in 3,000 runs


def _fallen(
    shape: tuple[int, ...] = SHAPE,
    rows: Tensor | None = ROWS,
    p: float = 0.3,
    number: int = 0,
    step: int = 0,
    seed: int = 0,
) -> Tensor:
    keys = _keys(number, rows, seed, step)
    return dropout(torch.ones(shape), *keys, p=p, number=0) == 0


def _keys(
    number: int = 0, rows: Tensor | None = ROWS, seed: int = 0, step: int = 0
) -> tuple[Tensor, Tensor | None]:
    key = step_draws(seed, step)
    own = None if rows is None else row_keys(key, rows)
    return dropout_keys(key, torch.tensor([number])), own


def _deviations(count: Tensor, of: int, p: float) -> float:
    """How far a count is from that of `of` independent draws, in standard deviations."""
    return float(count - p * of) / (of * p * (1 - p)) ** 0.5


def _together(a: Tensor, b: Tensor, p: float = 0.3) -> float:
    return abs(_deviations((a & b).sum(), a.numel(), p * p))


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_rate_is_within_binomial_bounds(p: float, seed: int) -> None:
    fallen = _fallen(p=p, seed=seed)
    assert abs(_deviations(fallen.sum(), fallen.numel(), p)) < LARGEST


def test_the_rate_is_that_of_each_dim() -> None:
    """Sums over rows, positions and features vary as those of independent draws."""
    fallen = _fallen().double()
    for dims in ((0, 1), (0, 2), (1, 2), (0,), (1,), (2,)):
        counts = fallen.sum(dims)
        of = fallen.numel() // counts.numel()
        spread = float(counts.var(unbiased=False)) / (of * 0.3 * 0.7)
        # A variance of n counts has a deviation of sqrt(2 / n).
        assert abs(spread - 1) < LARGEST * (2 / counts.numel()) ** 0.5, dims


OTHER: dict[str, Callable[[], Tensor]] = {
    "dropout": lambda: _fallen(number=1),
    "step": lambda: _fallen(step=1),
    "seed": lambda: _fallen(seed=1),
    "rows": lambda: _fallen(rows=ROWS + len(ROWS)),
}


@pytest.mark.parametrize("name", OTHER)
def test_draws_of_another_key_are_independent(name: str) -> None:
    assert _together(_fallen(), OTHER[name]()) < LARGEST


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("apart", [1, 2, 3, 8, 16])
def test_neighbours_are_independent(dim: int, apart: int) -> None:
    fallen, size = _fallen(), SHAPE[dim] - apart
    assert _together(fallen.narrow(dim, 0, size), fallen.narrow(dim, apart, size)) < LARGEST


def test_the_bits_are_those_of_the_definition() -> None:
    words = step_draws(3, 7).tolist()
    rows, shape = torch.tensor([5, 2**33 + 1]), (2, 3, 4)
    found = _fallen(shape, rows, p=0.4, number=2, seed=3, step=7)
    drawn = pair((words[0], words[1]), 2)
    for place, row in product(range(12), range(2)):
        key = joined(drawn, pair((words[2], words[3]), int(rows[row])))
        assert bool(found[row, place // 4, place % 4]) == falls(key, place, 0.4)


def test_places_beyond_a_word_are_drawn_anew() -> None:
    """Of rows of 2**33 elements, at both ends."""
    keys, x = _keys(rows=None), torch.ones(2, 64)
    cut = {0: (torch.tensor([0, 2**17]), 2**18), 1: (0, 2**15)}
    found = dropout(x, *keys, p=0.5, number=0, cut=cut) == 0
    key = tuple(keys[0][0, :2].tolist())
    assert found[0].tolist() == [falls(key, place, 0.5) for place in range(64)]
    assert found[1].tolist() == [falls(key, 2**32 + place, 0.5) for place in range(64)]
    assert not torch.equal(found[0], found[1])


def test_what_stays_is_scaled_and_an_evaluation_drops_nothing() -> None:
    x, keys = torch.randn(4, 6, 8, dtype=torch.float64), _keys()
    y = dropout(x, *keys, p=0.2, number=0)
    torch.testing.assert_close(y[y != 0], (x / 0.8)[y != 0], rtol=1e-15, atol=0)
    assert 0 < int((y == 0).sum()) < y.numel()
    assert not dropout(x, *keys, p=1.0, number=0).any()
    keys[0][:, 2] = 0
    assert torch.equal(dropout(x, *keys, p=0.2, number=0), x)


def test_in_bf16_the_scale_is_not_rounded() -> None:
    x = torch.randn(4, 64, 64).bfloat16()
    y = dropout(x, *_keys(), p=0.1, number=0)
    assert y.dtype is torch.bfloat16
    assert torch.equal(y[y != 0], (x.float() / 0.9).bfloat16()[y != 0])


def test_rows_are_drawn_by_their_place_in_the_global_batch() -> None:
    whole = _fallen()
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0))
    assert torch.equal(_fallen(rows=ROWS[order]), whole[order])
    assert torch.equal(_fallen((7, 96, 40), ROWS[9:16]), whole[9:16])


def test_rows_may_lie_in_any_dim() -> None:
    keys, x = _keys(), torch.ones(6, 8, 10)
    whole = dropout(x, *keys, p=0.5, number=0)
    turned = dropout(x.transpose(0, 1), *keys, p=0.5, number=0, row_dim=1)
    assert torch.equal(turned.transpose(0, 1), whole)
    flat = dropout(x.flatten(0, 1), *keys, p=0.5, number=0, inner=8)
    assert torch.equal(flat.view_as(whole), whole)


@pytest.mark.parametrize(("dim", "outer"), [(1, 1), (2, 1), (2, 2), (2, 5)])
@pytest.mark.parametrize("mirrored", [False, True])
def test_shards_are_parts_of_the_whole(dim: int, outer: int, mirrored: bool) -> None:
    if mirrored and outer > 1:
        pytest.skip("the sequence is cut in mirrored shards of outer 1")
    keys, x = _keys(), torch.ones(3, 8, 20)
    whole, size = dropout(x, *keys, p=0.5, number=0), x.shape[dim]
    for rank in range(2):
        cut = (dim, outer, rank, 2, mirrored)
        own, expected = collectives.shard(x, *cut), collectives.shard(whole, *cut)
        starts: list[int | Tensor] = [collectives.shard(torch.arange(size), 0, *cut[1:])]
        starts += [rank * size // 2] * (outer == 1 and not mirrored)
        for start in starts:
            made = dropout(own, *keys, p=0.5, number=0, cut={dim: (start, size)})
            assert torch.equal(made, expected)


@pytest.mark.long
def test_compiled_and_eager_draw_the_same() -> None:
    def run(x: Tensor, draws: Tensor, rows: Tensor) -> Tensor:
        return dropout(x * 2, draws, rows, p=0.3, number=0, cut={1: (16, 64), 2: (places, 48)}) + 1

    x, places = torch.randn(4, 32, 48), torch.arange(48).flip(0)
    compiled = torch.compile(run, fullgraph=True, dynamic=False)
    for step in range(3):  # of which none is compiled anew
        keys = _keys(1, ROWS[7:11], step=step)
        assert torch.equal(compiled(x, *keys), run(x, *keys))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
