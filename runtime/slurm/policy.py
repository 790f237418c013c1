"""What to do when an attempt of a job ended: a rule without side effects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..training.options import ABORTED, STOPPED, UNFIT

ON_FAILURE = ("restart", "requeue", "stop")
REFUSED = 2
# A node that failed so often is used no more.
TWICE = 2
_LONGEST_S = 300.0

Do = Literal["done", "stop", "restart", "requeue"]


@dataclass(frozen=True)
class Policy:
    """Policy of a job on preemption and failure.

    on_failure: restart on the nodes of the allocation, requeue, or stop. restarts: attempts that
    may fail one after another without a new checkpoint between them. backoff_s: pause before the
    first restart, doubled for each further one. spare: nodes of the allocation that wait for
    others to fail. least: the fewest nodes that the run may be planned for. stop_before_s: seconds
    before the end of the job's time at which ranks save.
    """

    on_failure: str = "restart"
    restarts: int = 3
    backoff_s: float = 10.0
    spare: int = 0
    least: int = 1
    stop_before_s: float = 600.0

    def pause_s(self, failures: int) -> float:
        """Return the pause before a restart that follows so many failures in a row."""
        return min(self.backoff_s * 2 ** max(failures - 1, 0), _LONGEST_S)


@dataclass(frozen=True)
class Ending:
    """End of an attempt of a job.

    code: of the ranks. asked: a signal, or the end of the job's time, asked for a stop. running:
    the job still runs, as Slurm sees it. failed: nodes at fault, with why. in_a_row: failures since
    the last new checkpoint, this one counted. times: how often each node failed in this run.
    """

    code: int
    asked: bool
    running: bool
    failed: Mapping[str, str]
    in_a_row: int
    times: Mapping[str, int]


@dataclass(frozen=True)
class Verdict:
    """do: what comes next. why: in words. without: nodes that are not used again."""

    do: Do
    why: str
    without: tuple[str, ...] = ()


def verdict(ending: Ending, left: int, planned: int, policy: Policy) -> Verdict:
    """Return what to do after an attempt.

    left: healthy nodes of the allocation that did not fail twice. planned: the fewest nodes that
    the next attempt can run on.
    """
    if ending.code == 0:
        return Verdict("done", "the run ended")
    if ending.code == STOPPED or (ending.asked and ending.code not in (REFUSED, ABORTED)):
        return _stopped(ending)
    if ending.code in (REFUSED, ABORTED):
        return Verdict("stop", "the run is refused" if ending.code == REFUSED else "aborted")
    bad = {node for node, count in ending.times.items() if count >= TWICE}
    if ending.code == UNFIT:
        if not ending.failed:
            return Verdict("stop", "the machines are not as planned, and no node stands out")
        bad |= set(ending.failed)
    without = tuple(sorted(bad))
    return _failed(ending, left, planned, policy, without)


def _stopped(ending: Ending) -> Verdict:
    if not ending.asked:
        return Verdict("stop", "a signal from outside the job stopped the run")
    if not ending.running:
        return Verdict("stop", "the job is ended, or queued again, by Slurm")
    how = "saved" if ending.code == STOPPED else f"the ranks ended with {ending.code}"
    return Verdict("requeue", f"{how}; the job goes on when it is granted nodes again")


def _failed(
    ending: Ending, left: int, planned: int, policy: Policy, without: tuple[str, ...]
) -> Verdict:
    if policy.on_failure == "stop":
        return Verdict("stop", "--on-failure stop")
    if ending.in_a_row > policy.restarts:
        return Verdict(
            "stop",
            f"{ending.in_a_row} attempts in a row failed without a new checkpoint, --restarts "
            f"allows {policy.restarts}",
        )
    if policy.on_failure == "requeue" or left < planned:
        few = f"{left} healthy nodes are left, {planned} are needed"
        return Verdict("requeue", few if left < planned else "--on-failure requeue", without)
    return Verdict("restart", f"{left} healthy nodes are left, {planned} are needed", without)
