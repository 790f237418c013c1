"""Compute meshes shared out over processes: the search finds the same whoever makes them."""

import os
import time
from dataclasses import replace

import pytest
from families import traced

from meshwright.ir.mesh import compute_mesh
from meshwright.ir.text.plan_text import format_plan
from meshwright.planner.budget import BUDGET
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search import meshes, tightening
from meshwright.planner.search.candidate_costs import CandidateCosts, MeshCosts
from meshwright.planner.search.exploring import space_of
from meshwright.planner.search.forked import beside
from meshwright.planner.search.memo import Memo
from meshwright.planner.search.pins import Pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.search.search import search_plan


@pytest.fixture
def taken(monkeypatch) -> list[MeshCosts]:
    """Return what other processes make, which they have the time for."""
    found: list[MeshCosts] = []
    take, make = CandidateCosts.take, meshes._make
    here = os.getpid()

    def spy(self, mesh, made) -> None:
        found.append(made)
        take(self, mesh, made)

    def slow(*given) -> bool:
        time.sleep(0.2 if os.getpid() == here else 0.0)
        return make(*given)

    monkeypatch.setattr(CandidateCosts, "take", spy)
    monkeypatch.setattr(meshes, "_make", slow)
    return found


def _plan(processes: int) -> str:
    given = {"seq": 64, "global_batch": 16, "pins": Pins(), "processes": processes}
    given["budget"] = replace(BUDGET, enough_gap=0.0)
    return format_plan(search_plan(traced("tiny-llama"), parse_cluster("h100:4x2"), **given)[0])


def test_another_process_makes_meshes_for_the_same_plan(taken) -> None:
    alone = _plan(1)
    assert not taken
    assert _plan(2) == alone
    assert taken and all(made.sharded.lowered and made.options for made in taken)


def test_what_another_process_made_is_known_by_the_keys_of_this_one() -> None:
    """Each process numbers the placements of a mesh in the order in which it makes them."""
    mesh = compute_mesh(2)

    def costs_of(memo: Memo, price: float) -> CandidateCosts:
        given = traced("tiny-llama"), parse_cluster("h100:2"), 64, 16, Pins(price=price)
        return CandidateCosts(Problem(*given), memo)

    here, there = Memo(), Memo()
    free, priced = (costs_of(here, price) for price in (0.0, 1.0))
    made = costs_of(there, 1.0)
    c = next(c for c in space_of(free) if c.compute == mesh)
    known = free.options(c)
    expected = made.options(c)
    priced.take(mesh, made.given(mesh))
    assert not free.sharding(mesh).same_placements(made.sharding(mesh))
    assert (free.placed(mesh), priced.placed(mesh)) == ((mesh, 0), (mesh, 1))
    assert made.placed(mesh) == (mesh, 0)
    assert costs_of(here, 0.0).options(c) == known != expected
    assert costs_of(here, 1.0).options(c) == expected


def test_meshes_of_a_process_that_ends_are_made_here(taken, monkeypatch) -> None:
    alone = _plan(1)
    monkeypatch.setattr(meshes, "_serve", lambda *_: os._exit(1))
    assert _plan(2) == alone
    assert not taken


def test_bounds_that_limit_the_gap_may_be_made_early(monkeypatch) -> None:
    monkeypatch.setattr("meshwright.planner.search.exploring.FIRST_S", -1.0)
    early: list[bool] = []

    def spy(make, wanted):
        early.append(wanted)
        return beside(make, wanted)

    alone = _plan(1)
    monkeypatch.setattr(tightening, "beside", spy)
    assert _plan(2) == alone
    assert any(early)


def test_what_is_made_beside_is_given_or_none_where_its_process_ended() -> None:
    with beside(lambda: 3, True) as made:
        assert made() == 3
    with beside(lambda: os._exit(1), True) as made:
        assert made() is None
    with beside(lambda: 3, False) as made:
        assert made() is None
