"""Processes beside a search: forked, so that they begin with all that it has kept (memo.py)."""

import multiprocessing
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

Made = TypeVar("Made")
_ENDING = {signal.SIGINT, signal.SIGTERM}  # signals that end a command


@dataclass
class Forked:
    """A process, and the pipe to it."""

    process: BaseProcess
    pipe: Connection

    def end(self) -> None:
        """End the process, whatever it does."""
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def can_fork() -> bool:
    """Return whether a process may be forked: elsewhere than on Linux that is unsafe beside
    threads."""
    return sys.platform == "linux"


def fork(serve: Callable[[Connection], None], others: Iterable[Connection] = ()) -> Forked:
    """Start a process that serves a pipe until this process closes it.

    others: pipes to processes that were started before. Raises OSError where there is no memory, or
    no more processes are allowed.
    """
    forked = multiprocessing.get_context("fork")
    ours, theirs = forked.Pipe()
    given = serve, theirs, [ours, *others]
    process = forked.Process(target=_serve, args=given, daemon=True)
    # The child has this process's handlers until it serves: a signal waits for that.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        with warnings.catch_warnings():  # of threads, which the child has no use for
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return Forked(process, ours)


@contextmanager
def several(serve: Callable[[Connection], None], count: int) -> Iterator[list[Forked]]:
    """Give `count` processes that serve, and end them with what is inside.

    Fewer are given where there is no memory, or no more are allowed.
    """
    found: list[Forked] = []
    try:
        with suppress(OSError):
            while len(found) < count:
                found.append(fork(serve, [one.pipe for one in found]))
        yield found
    finally:
        for one in found:
            one.end()


@contextmanager
def beside(make: Callable[[], Made], wanted: bool) -> Iterator[Callable[[], Made | None]]:
    """Make something in a process of its own while what is inside runs; what is given waits for it,
    and returns None where there is none. wanted: whether to."""

    def serve(pipe: Connection) -> None:
        pipe.send(make())

    forked = None
    with suppress(OSError):
        forked = fork(serve) if wanted and can_fork() else None

    def made() -> Made | None:
        with suppress(EOFError, OSError):
            return forked.pipe.recv() if forked else None
        return None

    try:
        yield made
    finally:
        if forked:
            forked.end()


def _serve(
    serve: Callable[[Connection], None], pipe: Connection, inherited: list[Connection]
) -> None:
    """Serve until the search ends; it alone minds Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    for other in inherited:  # else no end of the search would be seen
        other.close()
    with suppress(EOFError, OSError):
        serve(pipe)
