"""Boxes of a tp axis in a logical matrix: taken and placed, strided cuts too."""

import pytest
import torch

from meshwright.runtime.engine import mesh
from meshwright.runtime.engine.layout import Param
from meshwright.runtime.engine.logical import place_box, take_box

CUTS = [((0, 1),), ((1, 1),), ((0, 3),), ((1, 2),), ((0, 2), (1, 3))]


@pytest.fixture
def three_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh._state, "sizes", {"pp": 1, "dp": 1, "tp": 3})


@pytest.mark.usefixtures("three_ranks")
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_what_is_taken_goes_back_to_its_place(cuts: tuple[tuple[int, int], ...]) -> None:
    shards = tuple((dim, outer, "tp") for dim, outer in cuts)
    param = Param("w", (18, 36), shards, "")
    whole = torch.arange(18 * 36).view(18, 36)
    found = torch.full_like(whole, -1)
    for rank in range(3):
        box = take_box(whole, param, {"tp": rank})
        expected = whole
        for dim, outer in cuts:
            parts = expected.unflatten(dim, (outer, 3, -1)).select(dim + 1, rank)
            expected = parts.flatten(dim, dim + 1)
        assert torch.equal(box, expected) and box.is_contiguous()
        place_box(found, box, param, {"tp": rank})
    if len(cuts) == 1:
        assert torch.equal(found, whole)
    else:  # both dims cut by one axis: the boxes of the diagonal
        assert int((found >= 0).sum()) == whole.numel() // 3


def test_two_axes_cut_one_dim_one_inside_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads over tp, the queries of a head over tq: six boxes of three rows make up the matrix."""
    monkeypatch.setattr(mesh._state, "sizes", {"tp": 3, "tq": 2})
    param = Param("w", (18, 4), ((0, 1, "tp"), (0, 1, "tq")), "")
    whole = torch.arange(18 * 4).view(18, 4)
    found = torch.full_like(whole, -1)
    places = mesh.places(*mesh.TENSOR)
    assert places == [{"tp": t, "tq": q} for t in range(3) for q in range(2)]
    for index, place in enumerate(places):
        box = take_box(whole, param, place)
        assert torch.equal(box, whole[3 * index : 3 * index + 3])
        place_box(found, box, param, place)
    assert torch.equal(found, whole)
