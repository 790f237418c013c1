"""What a job's script starts: the attempts of a run on the nodes that the job was granted.

It chooses healthy nodes, has the run planned anew where their number is another, starts the ranks,
and decides by a rule (policy.py) what follows the end of an attempt.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ..given import check_given
from ..launch.words import option_words
from ..roles import AGENT
from ..training.options import STOPPED, UNFIT, add_arguments
from ..training.past_run import launch_of, live_values
from .attempts import Attempt, Attempts, newest_step, now_s
from .needs import nodes_of
from .policy import ON_FAILURE, TWICE, Ending, Policy, Verdict, verdict
from .rendezvous import rendezvous
from .reports import LOST, Begun, read_begun, tell_begun
from .scheduler import (
    TASK,
    Allocation,
    SlurmError,
    TooFewError,
    by_switch,
    end_time,
    gone,
    job_state,
    nodes_in,
    read_allocation,
    requeue,
)
from .sentinel import Sentinel, Signs, lost_before, words_of
from .step import Step, StepEnd

# Between two looks at when the job's time ends, which may be changed while it runs.
_CLOCK_S = 60.0
REFUSED = 2


def main(folder: Path | None, words: list[str]) -> int:
    """Run a job in this allocation; return its exit code.

    folder: of the program, None where the run is planned here. words: options of the job, and
    behind `--` those of the run.
    """
    at = words.index("--") if "--" in words else len(words)
    try:
        given = _parser().parse_args(words[:at])
        run_words = [_task(word) for word in words[at + 1 :]]
        supervisor = Supervisor(read_allocation(), folder or given.program, given, run_words)
        return supervisor.supervise()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return REFUSED


def _task(word: str) -> str:
    """Return a word with %a replaced by the number of the task in an array of jobs."""
    return word.replace(TASK, os.environ.get("SLURM_ARRAY_TASK_ID", TASK))


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the options of a job."""
    parser = argparse.ArgumentParser(prog="main.py --supervise")
    parser.add_argument("--on-failure", choices=ON_FAILURE, default=Policy.on_failure)
    parser.add_argument("--restarts", type=int, default=Policy.restarts)
    parser.add_argument("--backoff", type=float, default=Policy.backoff_s)
    parser.add_argument("--spare", type=int, default=Policy.spare)
    parser.add_argument("--least", type=int, default=Policy.least)
    parser.add_argument("--stop-before", type=float, default=Policy.stop_before_s)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--plan-again", default="")
    parser.add_argument("--program", type=Path, default=None)
    return parser


def _run_options(words: list[str]) -> dict[str, object]:
    """Return the options of a run that words give, by name."""
    parser = argparse.ArgumentParser(prog="main.py")
    add_arguments(parser)
    given = vars(parser.parse_args(words))
    return {name: value for name, value in given.items() if value is not None}


class Supervisor:
    """One start of a job. folder: of the program, None where there is none yet.

    given: options of the job. run_words: options of the run.
    """

    def __init__(
        self,
        allocation: Allocation,
        folder: Path | None,
        given: argparse.Namespace,
        run_words: list[str],
    ) -> None:
        self.allocation, self.folder, self.given = allocation, folder, given
        self.run_words, options = run_words, _run_options(run_words)
        if folder is not None:
            check_given(folder, options)
        self.policy = Policy(
            given.on_failure,
            given.restarts,
            given.backoff,
            given.spare,
            given.least,
            given.stop_before,
        )
        self.out = Path(str(options.get("out", "run"))).absolute()
        self.attempts = Attempts(self.out, allocation.job)
        self.asked = False
        self._step: Step | None = None
        self._lost: set[str] = set()  # nodes that do not answer
        self._clock_at = 0.0
        self._ends_s: float | None = None
        Signs(allocation.job, self.attempts.folder)
        watching = [*shlex.split(given.prefix), *words_of(given.python, folder)]
        self.sentinel = Sentinel(allocation.job, self.attempts.folder, watching)
        self._left: tuple[str, ...] = tuple(allocation.nodes)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        self._ask(f"{signal.Signals(number).name} came")

    def _ask(self, why: str) -> None:
        """Have the ranks save and stop, once."""
        if self.asked:
            return
        self.asked = True
        say(f"{why}: the ranks save and stop")
        if self._step is not None:
            self._step.stop()

    def supervise(self) -> int:
        """Make attempts until one is the last; return the exit code."""
        self._tell_of_loss()
        try:
            return self._until_the_last()
        finally:
            self.sentinel.end()

    def _tell_of_loss(self) -> None:
        """Keep how the attempt ended that was lost with the node of its supervisor."""
        host = lost_before(self.attempts.folder)
        number = self.attempts.next_number
        begun = read_begun(self.attempts.folder / f"attempt_{number:03d}")
        if not host or begun is None:
            return
        say(f"{host} failed: {LOST}; the script of the job was lost with it")
        job, restart = self.allocation.job, max(self.allocation.restart - 1, 0)
        then, saved = "requeue: by another node, as the script was lost", newest_step(self.out)
        times = begun.at_s, now_s()
        lost = Attempt(
            job, restart, number, begun.nodes, *times, 1, begun.first, saved, {host: LOST}, then
        )
        self.attempts.add(lost)

    def _until_the_last(self) -> int:
        while True:
            try:
                nodes = self._left = self._nodes()
                self.sentinel.keep(nodes)
                program, nodes = self._fitted(nodes)
            except TooFewError as error:
                if not self._unused():
                    raise
                say(str(error))
                return self._queue_again(self._unused())
            if self.asked:
                return self._not_begun()
            end, what = self._attempt(program, nodes)
            if what.do == "restart" and not self.asked:
                self._pause()
                if not self.asked:
                    continue
            if what.do in ("requeue", "restart"):
                return self._queue_again(what.without)
            return 0 if what.do == "done" else end.code

    def _not_begun(self) -> int:
        """End a start of the job that is asked to stop before an attempt; return the exit code."""
        say("no attempt is begun, as the job is to stop")
        running = job_state(self.allocation.job) == "RUNNING"
        return self._queue_again(()) if running else STOPPED

    def _unused(self) -> tuple[str, ...]:
        """Return the nodes of the job that failed twice."""
        times = self.attempts.times_failed({})
        return tuple(node for node in self.allocation.nodes if times[node] >= TWICE)

    def _queue_again(self, without: tuple[str, ...]) -> int:
        job = self.allocation.job
        nodes = self._nodes_again(without) if without else 0
        say(f"job {job} is queued again{' without ' if without else ''}{', '.join(without)}")
        requeue(job, without, nodes)
        return STOPPED

    def _nodes_again(self, without: tuple[str, ...]) -> int:
        """Return how many nodes the job asks for when it is queued again without some: as many as
        it had, or as its partition has others that are up. Raises TooFewError for fewer than it
        needs, which it would await for ever."""
        others = nodes_in(os.environ.get("SLURM_JOB_PARTITION", "")) - set(without)
        others -= gone(sorted(others)) if others else set()
        if len(others) < self._needed():
            raise TooFewError(
                f"{', '.join(without)} failed twice, {len(others)} other nodes of the partition "
                f"are up, {self._needed()} are needed; submit the job again once they work"
            )
        return min(len(self.allocation.nodes), len(others))

    def _needed(self) -> int:
        """Return the fewest nodes that the run can go on with."""
        if self.given.plan_again or self.folder is None:
            return self.policy.least
        return nodes_of(self.folder)

    def _nodes(self) -> tuple[str, ...]:
        """Return the nodes that may be used, the fewest failures first, in Slurm's order."""
        times = self.attempts.times_failed({})
        lost = gone(self.allocation.nodes) | self._lost
        good = [n for n in self.allocation.nodes if n not in lost and times[n] < TWICE]
        if lost:
            say(f"nodes that are gone: {', '.join(sorted(lost))}")
        if not good:
            raise TooFewError(
                f"0 of {len(self.allocation.nodes)} nodes of job {self.allocation.job} can be used"
            )
        by_failures = sorted(good, key=lambda node: times[node])
        planned = nodes_of(self.folder) if self.folder is not None else 1
        most = max(len(self.allocation.nodes) - self.policy.spare, planned)
        kept = set(by_failures[:most])
        return by_switch([node for node in good if node in kept])

    def _fitted(self, nodes: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
        """Return a program and the nodes it runs on: that of the job, else one planned anew for as
        many of the nodes as it can be."""
        planned = nodes_of(self.folder) if self.folder is not None else 0
        if self.folder is not None and planned == len(nodes):
            return self.folder, nodes
        if not self.given.plan_again:
            if 0 < planned <= len(nodes) and self.folder is not None:
                return self.folder, nodes[:planned]
            raise TooFewError(
                f"the program is planned for {planned} nodes, {len(nodes)} can be used; submit the "
                "job file in place of the program, which is planned anew then"
            )
        return self._planned(nodes)

    def _planned(self, nodes: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
        """Plan the job for the nodes, or for as many of them as a plan is found for."""
        for count in range(len(nodes), self.policy.least - 1, -1):
            say(f"planning for {count} nodes")
            words = [*shlex.split(self.given.plan_again), "--nodes", str(count)]
            words += ["--out", str(self.out)]
            done = subprocess.run(words)
            if done.returncode == 0:
                self.folder = self.out / "program"
                return self.folder, nodes[:count]
            if self.asked:
                break
        raise SlurmError(
            f"no plan was found for {self.policy.least} to {len(nodes)} nodes; what was tried "
            "stands above"
        )

    def _attempt(self, program: Path, nodes: tuple[str, ...]) -> tuple[StepEnd, Verdict]:
        """Run the ranks once; keep how it ended, and return that with what follows."""
        number, began, first = self.attempts.next_number, now_s(), newest_step(self.out)
        folder = self.attempts.folder / f"attempt_{number:03d}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.out / "beats", ignore_errors=True)
        tell_begun(folder, Begun(nodes, first, began))
        say(f"attempt {number} of {program.name} on {', '.join(nodes)}")
        address, port = rendezvous(nodes[0], self.allocation, number)
        words = self._agent(program, folder, address, port, fresh=first == 0)
        self._step = Step(self.allocation, nodes, words, folder)
        if self.asked:
            self._step.stop()
        end = self._step.wait(self._tick)
        self._step = None
        if end.code == UNFIT:
            end = StepEnd(UNFIT, self._slow(nodes))
            self._lost |= end.failed.keys()
        what = self._verdict(end, first)
        for node, why in end.failed.items():
            say(f"{node} failed: {why}")
        say(f"attempt {number} ended with {end.code}; {what.do}: {what.why}")
        self.attempts.add(
            Attempt(
                self.allocation.job,
                self.allocation.restart,
                number,
                nodes,
                began,
                now_s(),
                end.code,
                first,
                newest_step(self.out),
                end.failed,
                f"{what.do}: {what.why}",
            )
        )
        return end, what

    def _verdict(self, end: StepEnd, first: int) -> Verdict:
        times = self.attempts.times_failed(end.failed)
        progress = newest_step(self.out) > first
        in_a_row = 1 + (0 if progress else self.attempts.failures_in_a_row())
        running = job_state(self.allocation.job) == "RUNNING"
        ending = Ending(end.code, self.asked, running, end.failed, in_a_row, times)
        self._lost |= {node for node, why in end.failed.items() if why == LOST}
        lost = gone(self.allocation.nodes) | self._lost
        left = [n for n in self.allocation.nodes if n not in lost and times[n] < TWICE]
        return verdict(ending, len(left), self._needed(), self.policy)

    def _slow(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Return the nodes that the preflight found slow, with why; none where all are, as others
        would hardly be faster."""
        found = json.loads((self.out / "preflight.json").read_text())
        if set(found["slow_hosts"]) >= set(nodes):
            return {}
        lines = {line.partition(": ")[0]: line.partition(": ")[2] for line in found["slow"]}
        return {host: lines[host] for host in found["slow_hosts"]}

    def _agent(
        self, program: Path, folder: Path, address: str, port: int, *, fresh: bool
    ) -> list[str]:
        """Return the command of an agent, with what a user set while the run was live. fresh: there
        is no checkpoint to go on from."""
        again = [word for word in self.run_words if fresh or word != "--fresh"]
        live = live_values(self.out, launch_of(os.getpid()))
        options = [*again, *option_words(live), "--out", str(self.out)]
        place = [str(folder), address, str(port)]
        main = str((program / "main.py").absolute())
        return [*shlex.split(self.given.prefix), self.given.python, main, AGENT, *place, *options]

    def _tick(self) -> None:
        """Look whether the job's time comes to its end."""
        now = time.time()
        if now - self._clock_at > _CLOCK_S:
            self.sentinel.keep(self._left)
            self._clock_at, self._ends_s = now, end_time(self.allocation.job)
        if self._ends_s is not None and now > self._ends_s - self.policy.stop_before_s:
            self._ask(f"the job's time ends in {self._ends_s - now:.0f} s")

    def _pause(self) -> None:
        seconds = self.policy.pause_s(self.attempts.failures_in_a_row())
        say(f"restarting in {seconds:g} s")
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.asked:
            time.sleep(0.1)


def say(text: str) -> None:
    """Print a line of the job's log."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"[{stamp}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(None, sys.argv[1:]))
