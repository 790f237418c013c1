"""Sizes that break a condition on rows and tokens are found wherever it puts them."""

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, Mod

from meshwright.ir.capture.conditions import breaking, holds_below, holds_from

B, S = sympy.symbols("B S", integer=True, positive=True)


@pytest.mark.parametrize(
    ("condition", "lengths"),
    [
        (sympy.Ne(S, 512), (1, None)),
        (sympy.Ne(S, 512), (4, 700)),
        (sympy.Ne(B, 24), (1, None)),
        (sympy.Ne(6 * B * S, 4200), (1, None)),
        (sympy.Ne(3 * S + 5, 1160), (1, None)),
        (sympy.Ne(B * S + 5, 5001), (1, 2000)),
        (sympy.Ne(S * S + S, 1_001_000), (1, None)),
        (sympy.Ne(FloorDiv(S, 16), 40), (1, None)),
        (sympy.Ne(Mod(S, 700), 0), (1, None)),
        (sympy.Le(B * S, 4096), (1, 128)),
        (sympy.Ne(FloorDiv(S * S, 6400), 1), (1, None)),
        (sympy.Ne(FloorDiv(FloorDiv(S * (S - 1), 2), 1000), 4), (1, None)),
        (sympy.Ne(FloorDiv(B * B * S, 64_000), 7), (4, 5)),
        (sympy.Ne(Mod(S * S, 10_007), 5_000), (1, None)),
        (sympy.And(sympy.Ge(S, 1), sympy.Ne(S, 777)), (1, None)),
    ],
)
def test_the_sizes_that_break_it_are_found(
    condition: sympy.Basic, lengths: tuple[int, int | None]
) -> None:
    found = breaking(condition, B, S, lengths)
    assert found is not None
    assert lengths[0] <= found[1] <= (lengths[1] or found[1])
    assert condition.subs({B: found[0], S: found[1]}) == sympy.false


@pytest.mark.parametrize(
    ("condition", "lengths"),
    [
        (sympy.Ne(S, 512), (1, 511)),
        (sympy.Ge(S, 4), (4, None)),
        (sympy.Ne(B * S + S, 0), (1, None)),
        (sympy.Le(FloorDiv(S + 15, 16), 4), (1, 64)),
    ],
)
def test_a_condition_that_holds_for_every_size_is_kept(
    condition: sympy.Basic, lengths: tuple[int, int | None]
) -> None:
    assert breaking(condition, B, S, lengths) is None


@pytest.mark.parametrize(
    ("condition", "lengths", "end"),
    [
        (sympy.Ne(sympy.Max(0, 128 - S), 0), (1, None), 128),
        (sympy.Ne(sympy.Min(256, S), 256), (1, None), 256),
        (sympy.Lt(S, 300), (4, None), 300),
        (sympy.Ne(S, 512), (1, None), None),
        (sympy.Ne(FloorDiv(S, 16), 40), (1, None), None),
        (sympy.Eq(Mod(S, 2), 0), (1, None), None),
        (sympy.Gt(S, 40), (1, None), None),
        (sympy.Lt(B * S, 4096), (1, 128), None),
    ],
)
def test_lengths_end_where_a_condition_holds_no_longer(
    condition: sympy.Basic, lengths: tuple[int, int | None], end: int | None
) -> None:
    assert holds_below(condition, B, S, lengths) == end


@pytest.mark.parametrize(
    ("condition", "begin"),
    [
        (sympy.Ne(FloorDiv(S + 3, 4), 1), 5),
        (sympy.Ge(S, 12), 12),
        (sympy.Ge(S, 40), None),
        (sympy.Ne(Mod(S, 4), 0), None),
        (sympy.Ne(S, 4096), None),
        (sympy.Gt(B * S, 20), None),
    ],
)
def test_lengths_begin_where_a_condition_holds_from(
    condition: sympy.Basic, begin: int | None
) -> None:
    assert holds_from(condition, B, S, (4, None), 13) == begin
