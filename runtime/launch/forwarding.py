"""Signals that ask a run to stop, passed on to its ranks."""

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .ranks import Rank
from .stops import STOPS

# A second Ctrl-C within so long is the first, sent twice.
_SAME_S = 1.0


class Forwarding:
    """Signals that ask for a stop reach every rank, Ctrl-C once. asked: whether one came.

    A terminal and what stands between it and us, such as `timeout`, may each send the same Ctrl-C.
    """

    def __init__(self) -> None:
        self.ranks: list[Rank] = []
        self.asked = False
        self._interrupted_at = -math.inf
        # The ranks inherit this: a signal that comes while they import torch is not lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        self._before = {number: signal.signal(number, self._forward) for number in STOPS}

    def listen(self) -> None:
        """All ranks are started."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def _forward(self, number: int, _: object) -> None:
        self.asked = True
        if number == signal.SIGINT:
            if time.monotonic() - self._interrupted_at < _SAME_S:
                return
            if self._interrupted_at > -math.inf:
                raise KeyboardInterrupt
            self._interrupted_at = time.monotonic()
            print(
                "stopping within two steps, saving; Ctrl-C again ends the run at once, unsaved",
                file=sys.stderr,
            )
            number = signal.SIGTERM
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.send_signal(number)

    def end(self) -> None:
        """No rank outlives it."""
        self.listen()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for rank in self.ranks:
            rank.process.kill()
            rank.process.wait()


@contextmanager
def forwarding_signals() -> Iterator[Forwarding]:
    forwarding = Forwarding()
    try:
        yield forwarding
    finally:
        forwarding.end()
