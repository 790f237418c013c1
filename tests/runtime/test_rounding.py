"""Stochastic rounding: unbiased, exact where it can be, and the same however tensors are cut."""

from dataclasses import replace

import pytest
import torch
import triton_runs
from torch import Tensor

from meshwright.runtime.engine.boxes import Cut, pieces_of
from meshwright.runtime.engine.layout import Param
from meshwright.runtime.optimizers.rounding import key_of, random_bits, round_part, stochastic
from meshwright.runtime.optimizers.rule import Part

UNIT = 2.0**-7  # between bfloat16 neighbours above 1
PARAM = Param("w", (24, 36), (), "normal(0.0, 1.0)")


@pytest.mark.parametrize("part", [0.01, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_mean_is_the_value_and_only_neighbours_come_out(part: float, sign: float) -> None:
    count = 200_000
    x = torch.full((count,), sign * (1.0 + part * UNIT))
    found = stochastic(x, torch.arange(count), key_of(0, 1, "w")).double() * sign
    assert set(found.unique().tolist()) == {1.0, 1.0 + UNIT}
    share = (found.mean().item() - 1.0) / UNIT
    assert abs(share - part) < 4 * (part * (1 - part) / count) ** 0.5


def test_bfloat16_values_and_what_is_not_finite_stay() -> None:
    exact = torch.randn(1000).bfloat16().float()
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0])
    x = torch.cat([exact, special])
    found = stochastic(x, torch.arange(x.numel()), 7)
    assert torch.equal(found.float().nan_to_num(3.0), x.nan_to_num(3.0))


def test_bits_depend_on_seed_step_name_and_element_and_are_even() -> None:
    index = torch.arange(1 << 16)
    seen = [random_bits(index, key_of(*key)) for key in ((0, 1, "w"), (1, 1, "w"), (0, 2, "w"))]
    seen += [random_bits(index, key_of(0, 1, "v")), random_bits(index + (1 << 33), seen_key())]
    for one in range(len(seen)):
        for bit in range(32):  # a fair coin: within five standard deviations
            ones = int((seen[one] >> bit & 1).sum())
            assert abs(ones - (1 << 15)) < 5 * 2**7
        for other in range(one):
            same = int((seen[one] >> 16 == seen[other] >> 16).sum())
            assert same < 12  # one is expected


def seen_key() -> int:
    return key_of(0, 1, "w")


CUTS = {
    "rows": (0, 1, 2),
    "columns": (1, 1, 3),
    "thirds of rows": (0, 3, 2),
    "halves of columns": (1, 2, 3),
}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_every_cut_rounds_as_the_whole(name: str, shards: int) -> None:
    """tp cuts a dim, dp the flat local box; put together they are the whole tensor's rounding."""
    x = torch.randn(PARAM.shape, generator=torch.Generator().manual_seed(0))
    index = torch.arange(x.numel()).view(x.shape)
    expected = stochastic(x, index, 5)
    dim, outer, n = CUTS[name]
    for rank in range(n):
        cut = Cut(dim, outer, rank, n)
        local = x.unflatten(dim, (outer, n, -1)).select(dim + 1, rank).flatten(dim, dim + 1)
        want = expected.unflatten(dim, (outer, n, -1)).select(dim + 1, rank).flatten(dim, dim + 1)
        assert torch.equal(_rounded_in_shards(local, cut, shards), want)


def _rounded_in_shards(local: Tensor, cut: Cut, shards: int) -> Tensor:
    flat, out = local.reshape(-1), torch.zeros(local.numel(), dtype=torch.bfloat16)
    stops = [local.numel() * (k + 1) // shards for k in range(shards)]
    for first, last in zip([0, *stops], stops, strict=False):
        for piece in pieces_of(tuple(local.shape), (cut,), first, last):
            round_part(out[first:last], flat[first:last], Part(PARAM, 0, piece), 5)
    return out.view(local.shape)


@pytest.mark.parametrize("shape", [(7,), (), (3, 4, 5)])
def test_other_ranks_than_matrices_count_on_from_row_to_row(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    (piece,) = pieces_of(shape, (), 0, max(1, x.numel()))
    out = torch.zeros(x.numel(), dtype=torch.bfloat16)
    round_part(out, x.reshape(-1), Part(replace(PARAM, shape=shape), 0, piece), 9)
    assert torch.equal(out, stochastic(x.reshape(-1), torch.arange(x.numel()), 9))


KERNEL = """
import torch
from meshwright.runtime.optimizers.rounding import stochastic
from meshwright.runtime.optimizers.triton_rounding import round_rows
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(5, 2100) * torch.tensor([1e-30, 1.0, 1e4, 3e38, 1.0])[:, None]
x[4, :3] = torch.tensor([float("inf"), -float("inf"), float("nan")])
for first, stride, key in ((0, 2100, 1), (17, 5000, 2**32 - 5), (2**32 - 3000, 2**33, 12345)):
    index = first + torch.arange(5)[:, None] * stride + torch.arange(2100)
    out = torch.zeros(5, 2200, dtype=torch.bfloat16, device=device)
    round_rows(out[:, :2100], x.to(device), first, stride, key)
    found, expected = out.cpu(), stochastic(x, index, key)
    assert torch.equal(found[:, :2100].nan_to_num(7.0), expected.nan_to_num(7.0)), (first, stride)
    assert not found[:, 2100:].any()
print("equal")
"""


@triton_runs.on_linux
def test_the_kernel_interpreted_equals_torch() -> None:
    triton_runs.run_interpreted(KERNEL)


@pytest.mark.gpu
def test_the_kernel_equals_torch() -> None:
    triton_runs.run(KERNEL)
