"""Where a search's time goes: seconds by layer, each moment counted to the innermost one only."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """A stopwatch of one search. seconds: by layer, in order of first use."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._now, self._within = now, [""]
        self._since = now()

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Count the time within to a layer."""
        self._charge()
        self._within.append(name)
        self.seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._charge()
            self._within.pop()

    def _charge(self) -> None:
        """Count the time since the last call to the layer it was spent in."""
        now = self._now()
        if name := self._within[-1]:
            self.seconds[name] += now - self._since
        self._since = now

    def text(self) -> str:
        """Return all layers in one line."""
        return ", ".join(f"{name} {spent:.1f} s" for name, spent in self.seconds.items())
