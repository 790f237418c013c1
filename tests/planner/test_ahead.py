"""Processes beside a search: it finds the same with them, without them, and when they end."""

import os
from dataclasses import replace

import pytest
from families import traced

from meshwright.ir.text.plan_text import format_plan
from meshwright.planner.budget import BUDGET, SearchBudget
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search import ahead
from meshwright.planner.search.ahead import Ahead
from meshwright.planner.search.candidates import candidates_of
from meshwright.planner.search.made import Asked, Known, Made
from meshwright.planner.search.pins import Pins
from meshwright.planner.search.search import Found, search_plan

QUESTION = {"seq": 64, "global_batch": 16, "pins": Pins(pp=2)}


@pytest.fixture
def sent(monkeypatch) -> list:
    """Let processes start at once; return what they are asked."""
    asked: list = []
    send = Ahead._send

    def spy(self, to, work) -> None:
        asked.extend(work)
        send(self, to, work)

    monkeypatch.setattr(ahead, "FIRST_S", -1.0)
    monkeypatch.setattr(Ahead, "_send", spy)
    return asked


def _told(processes: int, budget: SearchBudget = BUDGET) -> tuple[str, list]:
    cluster, asked = parse_cluster("h100:2x4"), {"processes": processes, "budget": budget}
    plan, found, _ = search_plan(traced("tiny-llama"), cluster, **QUESTION, **asked)
    return format_plan(plan), _considered(found)


def _considered(found: Found) -> list:
    """Return all that the search found of each combination."""
    seen = [(x.candidate, x.bound_us, x.step_us, x.fits) for x in found.losers]
    return [seen, found.bound_us, found.num_simulated, found.num_unfit]


def test_the_number_of_processes_changes_nothing(sent) -> None:
    alone = _told(1)
    assert not sent
    for processes in (2, 3):
        assert _told(processes) == alone
    assert {one.what for one in sent} == set(Known)


def test_a_wide_gap_is_looked_at_closer_by_any_number_of_processes(sent) -> None:
    coarse = replace(BUDGET, worth=0.5, max_thorough=0)
    closer = replace(coarse, worth_where_wide=0.01, wide=0.02)
    (_, (_, before_us, few, _)), (_, (_, after_us, more, _)) = _told(1, coarse), _told(1, closer)
    assert few < more
    assert before_us <= after_us
    assert _told(2, closer) == _told(1, closer)


def test_a_search_goes_on_without_processes_that_end(sent, monkeypatch) -> None:
    alone = _told(1)
    monkeypatch.setattr(ahead, "_serve", lambda *given: os._exit(len(given[-1].recv())))
    assert _told(3) == alone
    assert sent


def test_a_search_goes_on_where_no_process_starts(sent, monkeypatch) -> None:
    alone = _told(1)

    def refuse(self) -> None:
        raise OSError("cannot allocate memory")

    monkeypatch.setattr(Ahead, "_fork", refuse)
    assert _told(2) == alone
    assert not sent


def test_no_process_is_left_behind(sent, monkeypatch) -> None:
    started: list = []
    fork = Ahead._fork

    def spy(self):
        started.append(fork(self))
        return started[-1]

    monkeypatch.setattr(Ahead, "_fork", spy)
    _told(2)
    assert len(started) == 1
    for one in started:
        with pytest.raises(ChildProcessError):  # it was waited for: no zombie
            os.waitpid(one.forked.process.pid, os.WNOHANG)


@pytest.mark.parametrize(
    "now, serves",
    [(100.0, True), (90.0, False), (70.0, False), (130.0, False)],
    ids=["same", "less", "far less", "more"],
)
def test_a_bound_that_was_enough_serves_the_same_step_alone(now, serves) -> None:
    assert Made(_asked(100.0), 120.0).serves(_asked(now)) == serves


@pytest.mark.parametrize("now, serves", [(90.0, True), (81.0, True), (80.0, False)])
def test_a_bound_that_was_not_enough_serves_until_it_is(now, serves) -> None:
    assert Made(_asked(100.0), 80.0).serves(_asked(now)) == serves


@pytest.mark.parametrize("what", [Known.PATHS, Known.FITS])
def test_what_knows_nothing_of_enough_serves_whatever_that_is(what) -> None:
    assert Made(_asked(100.0, what), 80.0).serves(_asked(70.0, what))


def test_a_work_is_begun_once() -> None:
    taken = ahead._Taken()
    assert [taken.take(number) for number in (3, 3, 4)] == [True, False, True]


def _asked(enough_us: float, what: Known = Known.WHOLLY) -> Asked:
    found = candidates_of(traced("tiny-llama"), parse_cluster("cpu:1"), 4, Pins(), BUDGET)
    return Asked(found[0], what, enough_us)
