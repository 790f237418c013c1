"""How long a run still takes, by its steps so far with all that lies between them."""

import time


class Pace:
    """The pace of a run of `total` steps. The first step of a process counts for nothing: it may
    compile."""

    def __init__(self, total: int) -> None:
        self.total, self.began_s = total, time.monotonic()
        self._since: tuple[int, float] | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since this process began to train."""
        return time.monotonic() - self.began_s

    def after(self, step: int) -> str:
        """Return what to print after a step: the share that is done, and the time left once it is
        known."""
        now = time.monotonic()
        share = f"{(step + 1) / self.total:.1%}"
        if self._since is None or step <= self._since[0]:  # the first, or a rollback behind it
            self._since = step, now
            return share
        step_s = (now - self._since[1]) / (step - self._since[0])
        return f"{share}  ETA {clock(step_s * max(self.total - step - 1, 0))}"


def clock(seconds: float) -> str:
    """Return a span of time as hours, minutes and seconds, such as 0:01:05."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
