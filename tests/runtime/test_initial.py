"""Initial values: every plan starts from the same weights, each rank making its own part."""

import pytest
import torch

from meshwright.runtime.engine import initial
from meshwright.runtime.engine.initial import initial_value

PLACE = {"seed": 3, "dtype": torch.float32, "device": torch.device("cpu")}
RECIPES = (
    "normal(0.0, 0.02)",
    "uniform(-0.5, 0.25)",
    "trunc_normal(0.0, 0.5, -1.0, 1.0)",
    "constant(1.5)",
)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of rows in a small tensor."""
    monkeypatch.setattr(initial, "ROWS", 5)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("dim", "outer"), [(0, 1), (1, 1), (0, 3), (1, 2)])
def test_a_shard_is_the_slice_of_the_whole(recipe: str, ranks: int, dim: int, outer: int) -> None:
    whole = initial_value("w", (24, 16), recipe, **PLACE)
    blocks = whole.chunk(outer, dim)
    for rank in range(ranks):
        want = torch.cat([block.chunk(ranks, dim)[rank] for block in blocks], dim)
        found = initial_value("w", (24, 16), recipe, shards=((dim, outer, rank, ranks),), **PLACE)
        assert torch.equal(found, want)


def test_two_cuts_are_applied_in_order() -> None:
    whole = initial_value("w", (24, 16), RECIPES[0], **PLACE)
    cuts = ((0, 1, 1, 2), (1, 1, 3, 4))
    found = initial_value("w", (24, 16), RECIPES[0], shards=cuts, **PLACE)
    assert torch.equal(found, whole[12:, 12:])


def test_values_follow_the_name_and_the_seed_alone() -> None:
    first = initial_value("a", (12, 4), RECIPES[0], **PLACE)
    torch.manual_seed(1234)
    assert torch.equal(first, initial_value("a", (12, 4), RECIPES[0], **PLACE))
    assert not torch.equal(first, initial_value("b", (12, 4), RECIPES[0], **PLACE))
    other = {**PLACE, "seed": 4}
    assert not torch.equal(first, initial_value("a", (12, 4), RECIPES[0], **other))


def test_other_dtypes_hold_the_same_values_rounded() -> None:
    values = initial_value("a", (12, 4), RECIPES[0], **PLACE)
    half = initial_value("a", (12, 4), RECIPES[0], **{**PLACE, "dtype": torch.bfloat16})
    assert torch.equal(values.bfloat16(), half)


def test_recipes_have_their_moments_and_limits() -> None:
    normal, uniform, bounded, constant = (
        initial_value("w", (400, 50), recipe, **PLACE) for recipe in RECIPES
    )
    assert normal.std().item() == pytest.approx(0.02, rel=0.05)
    assert -0.5 <= uniform.min() < -0.49 and 0.24 < uniform.max() <= 0.25
    assert -1.0 <= bounded.min() < -0.9 and 0.9 < bounded.max() <= 1.0
    assert bool((constant == 1.5).all())


def test_a_scalar_and_a_vector() -> None:
    assert initial_value("s", (), "constant(2.0)", **PLACE).shape == ()
    assert initial_value("v", (7,), RECIPES[0], **PLACE).shape == (7,)


def test_a_row_filled_afterwards_holds_its_number_in_every_shard() -> None:
    recipe = "normal(0.0, 1.0) row(1, 0.5) row(6, 0.0)"
    whole = initial_value("w", (8, 3), recipe, **PLACE)
    plain = initial_value("w", (8, 3), "normal(0.0, 1.0)", **PLACE)
    assert whole[1].tolist() == [0.5] * 3 and whole[6].tolist() == [0.0] * 3
    assert torch.equal(whole[[0, 2, 7]], plain[[0, 2, 7]])
    half = initial_value("w", (8, 3), recipe, shards=((0, 1, 1, 2),), **PLACE)
    assert torch.equal(half, whole[4:])


def test_an_unknown_recipe_is_named() -> None:
    with pytest.raises(ValueError, match=r"'zipf\(1\.0\)' is not known"):
        initial_value("w", (4,), "zipf(1.0)", **PLACE)
