"""The runtime's mesh says what ir/mesh.py says: it is a copy, for programs without the compiler."""

from itertools import product

import pytest
import torch

from meshwright.ir import mesh as planned
from meshwright.planner.hardware.usable import communicators
from meshwright.runtime.engine import mesh
from meshwright.runtime.engine.p2p import Transfers

SIZES = {"pp": 2, "rep": 2, "dp": 3, "cp": 2, "tp": 2}


def test_roles_are_those_of_the_ir() -> None:
    assert mesh.ROLES == planned.ROLES
    for name in ("BATCH", "STORAGE", "REDUCED", "COMPUTE"):
        assert getattr(mesh, name) == getattr(planned, name), name
    for name in ("PIPELINE", "REPLICA", "CONTEXT", "TENSOR"):
        assert getattr(mesh, name) == (getattr(planned, name),), name


@pytest.fixture
def coordinates(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """This rank's coordinates in a mesh of SIZES, to be changed by the test."""
    monkeypatch.setattr(mesh._state, "sizes", dict(SIZES))
    found = dict.fromkeys(SIZES, 0)
    monkeypatch.setattr(mesh._state, "coordinates", found)
    monkeypatch.setattr(mesh._state, "device", torch.device("cpu"))
    return found


def test_each_element_has_one_owner(coordinates: dict[str, int]) -> None:
    """Of what differs along some axes, every distinct element is owned by exactly one rank."""
    for over in (("pp",), ("pp", "dp", "cp"), ("pp", "tp"), tuple(SIZES)):
        owners: dict[tuple[int, ...], int] = {}
        for place in product(*map(range, SIZES.values())):
            coordinates.update(zip(SIZES, place, strict=True))
            element = tuple(coordinates[name] for name in over)
            owners[element] = owners.get(element, 0) + mesh.owns(over)
        assert set(owners.values()) == {1}, over


def test_an_index_counts_along_roles_row_major(coordinates: dict[str, int]) -> None:
    coordinates.update(rep=1, dp=2, cp=1, tp=1)
    assert mesh.index(*mesh.BATCH) == 1 * 3 + 2
    assert mesh.index(*mesh.STORAGE) == 2 * 2 + 1
    assert mesh.count(*mesh.REDUCED) == 2 * 3 * 2


@pytest.mark.parametrize("sizes", ["pp=1 dp=1 tp=1", "pp=2 dp=1 tp=1", "pp=2 rep=2 dp=2 cp=2 tp=2"])
def test_the_planner_counts_its_communicators(sizes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of each axis and of roles together, one of all ranks, and two for what stages send:
    to the next one, and back."""
    made: list[tuple[str, ...]] = []

    def noted(axes: tuple[str, ...], rank: int) -> None:
        if any(named.size(axis) > 1 for axis in axes):
            made.append(axes)

    named = planned.parse_mesh(sizes)
    monkeypatch.setattr(mesh, "_state", mesh._State())
    monkeypatch.setattr(mesh, "_group_along", noted)
    monkeypatch.setattr(mesh, "check_world", lambda *_: None)
    monkeypatch.setattr(mesh, "another_group", lambda *_: None)
    mesh.start(dict(named.axes), torch.device("cpu"))
    several, stages = named.num_devices > 1, named.count(planned.PIPELINE)
    sends = len(Transfers(tuple(range(stages))).groups) if stages > 1 else 0
    assert communicators(named) == several * (1 + len(made)) + sends
