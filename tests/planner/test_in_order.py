"""Results of several processes come in order, and none is lost with a process."""

import os
import signal
import time
from collections.abc import Callable

import pytest

import meshwright as mw
from meshwright.ir.errors import PlanError
from meshwright.planner.search.in_order import in_order

Say = Callable[[str], None]
SWEEP = ("device.memory_gb=1,4", "link.nvlink.bandwidth=x1,x0.5")


@pytest.mark.parametrize("processes", [1, 2, 3, 9])
def test_results_come_in_order_whoever_makes_them(processes: int) -> None:
    heard: list[str] = []

    def make(number: int, say: Say) -> tuple[int, int]:
        say(f"making {number}")
        time.sleep(0.02 * (number % 3))
        return number * number, os.getpid()

    found = list(in_order(make, 7, processes, heard.append))
    assert [square for square, _ in found] == [number * number for number in range(7)]
    assert sorted(heard) == [f"making {number}" for number in range(7)]
    makers = {maker for _, maker in found}
    assert (os.getpid() in makers) == (processes == 1)
    assert len(makers) <= processes


def test_what_a_lost_process_had_taken_is_made_here() -> None:
    def make(number: int, _: Say) -> tuple[int, int]:
        if number == 1 and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return number, os.getpid()

    here = os.getpid()
    found = dict(in_order(make, 6, 2, lambda _: None))
    assert list(found) == list(range(6))
    assert found[1] == here


def test_an_error_is_raised_in_its_turn() -> None:
    def make(number: int, _: Say) -> int:
        if number == 3:
            raise PlanError(f"number {number}")
        return number

    found = []
    with pytest.raises(PlanError, match="number 3"):
        found.extend(in_order(make, 6, 2, lambda _: None))
    results = in_order(make, 6, 2, lambda _: None)
    assert [next(results) for _ in range(3)] == [0, 1, 2]


def test_numbers_that_share_work_are_made_by_one_process() -> None:
    def make(number: int, _: Say) -> int:
        time.sleep(0.02)
        return os.getpid()

    makers = list(in_order(make, 24, 2, lambda _: None, lambda number: number // 4))
    runs = [set(makers[start : start + 4]) for start in range(0, 24, 4)]
    assert [len(run) for run in runs] == [1] * 6
    assert len(set(makers)) == 2


def test_a_process_goes_on_with_what_shares_work_with_what_it_made() -> None:
    """Longer runs than one process is given at once: the others begin with other work."""

    def make(number: int, _: Say) -> int:
        time.sleep(0.02)
        return os.getpid()

    makers = list(in_order(make, 24, 2, lambda _: None, lambda number: number // 12))
    first, second = set(makers[:12]), set(makers[12:])
    assert len(first) == len(second) == 1
    assert first != second


def test_every_process_makes_some_of_what_shares_work() -> None:
    def make(number: int, _: Say) -> int:
        time.sleep(0.05)
        return os.getpid()

    assert len(set(in_order(make, 6, 2, lambda _: None, lambda number: 0))) == 2


def test_points_are_answered_alike_by_one_process_and_by_several() -> None:
    job = mw.Job(seq=128, global_batch=32, dtype="bf16", effort="fast")
    one, several = (
        mw.what_if("tiny", clusters=["h200:2"], job=job, sweeps=SWEEP, processes=count)
        for count in (1, 2)
    )
    assert one == several
    assert len({answer.step for answer in one}) > 1


def test_no_points_have_no_answers() -> None:
    job = mw.Job(seq=128, global_batch=32, dtype="bf16", effort="fast")
    assert mw.what_if("tiny", clusters=[], job=job) == []
