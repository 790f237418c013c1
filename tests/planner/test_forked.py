"""Processes beside a search end without a word, however early they are ended."""

import multiprocessing.util
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from meshwright.planner.search.forked import beside, fork


class Slow:
    """Makes each forked process begin late."""

    def begin(self) -> None:
        time.sleep(0.5)


@pytest.fixture
def slow_begin() -> Iterator[None]:
    """A command's handler of SIGTERM, and processes that begin late."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    slow, before = Slow(), signal.signal(signal.SIGTERM, end)
    multiprocessing.util.register_after_fork(slow, Slow.begin)
    yield
    signal.signal(signal.SIGTERM, before)


def wait(pipe: Connection) -> None:
    pipe.recv()


def test_a_process_that_is_ended_before_it_serves_says_nothing(
    slow_begin: None, capfd: pytest.CaptureFixture[str]
) -> None:
    forked = fork(wait)
    forked.end()
    assert forked.process.exitcode == -signal.SIGTERM
    assert capfd.readouterr().err == ""
    assert not {signal.SIGTERM, signal.SIGINT} & signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_what_is_made_beside_is_given() -> None:
    with beside(lambda: 6 * 7, wanted=True) as made:
        assert made() == 42
    with beside(lambda: 6 * 7, wanted=False) as made:
        assert made() is None
