"""What a job asks of Slurm, through its commands."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

_LIMIT_S, _ANSWER_S = 60.0, 15.0
# How long a job waits for a controller that is away, and after how long it asks again.
_AWAY_S, _AGAIN_S = 600.0, 10.0
# What Slurm says of a controller that is away.
_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Connection refused")
# What it says of a job that it does not know.
_UNKNOWN_JOB = ("Invalid job id", "not found")
# In a word of a run of an array: the number of the task.
TASK = "%a"
# States of a node on which nothing can be started.
_GONE = ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "UNKNOWN", "INVAL")


class SlurmError(ValueError):
    """A command of Slurm that fails, or an environment that is not that of a job."""


class AwayError(SlurmError):
    """A controller that does not answer, as while it starts again."""


class TooFewError(SlurmError):
    """Too few nodes of a job that can be used."""


@dataclass(frozen=True)
class Allocation:
    """The nodes that a job was granted. restart: how often the job was queued again before."""

    job: str
    restart: int
    nodes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name of this start of the job."""
        return f"{self.job}.{self.restart}"


def call(words: Sequence[str], limit_s: float = _LIMIT_S) -> str:
    """Return what a command of Slurm prints. Raises SlurmError where it fails or is missing, and
    AwayError where the controller does not answer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s)
    except FileNotFoundError:
        raise SlurmError(
            f"{words[0]}: this machine has no such command; Slurm's are installed on its login and "
            "compute nodes"
        ) from None
    except subprocess.TimeoutExpired:
        raise AwayError(f"{words[0]} did not answer in {limit_s:g} s; try again") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).partition("\n")[0]
        kind = AwayError if any(text in done.stderr for text in _AWAY) else SlurmError
        raise kind(f"{words[0]} ended with {done.returncode}: {said}")
    return done.stdout


def call_again(words: Sequence[str]) -> str:
    """Return what a command of Slurm prints, asked again and again while the controller is away,
    for up to _AWAY_S. Raises SlurmError as `call` does."""
    deadline = time.monotonic() + _AWAY_S
    while True:
        try:
            return call(words)
        except AwayError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


def read_allocation(environment: Mapping[str, str] = os.environ) -> Allocation:
    """Return the allocation that this process runs in. Raises SlurmError outside of a job."""
    names = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"
    job, listed = (environment.get(name, "") for name in names)
    if not job or not listed:
        raise SlurmError(
            f"{names[0]} is {job!r} and {names[1]} {listed!r}: this runs inside a job; submit "
            "job.sbatch with sbatch"
        )
    restart = int(environment.get("SLURM_RESTART_COUNT") or "0")
    return Allocation(job, restart, host_names(listed))


def host_names(listed: str) -> tuple[str, ...]:
    """Return the nodes of a list such as node[1-4], in Slurm's order."""
    return tuple(call(["scontrol", "show", "hostnames", listed]).split())


def address_of(node: str) -> str:
    """Return the address at which other nodes reach a node."""
    return _field(call(["scontrol", "show", "node", node, "--oneliner"]), "NodeAddr") or node


def by_switch(nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes with those of one switch side by side, in Slurm's order else: so neighbours
    along the inner axes of a mesh are near. A Slurm that knows no switches may call that an error.
    """
    try:
        switches = _switches(call(["scontrol", "show", "topology"]))
    except SlurmError:
        return tuple(nodes)
    place = {node: n for n, found in enumerate(switches) for node in found}
    first: dict[int, int] = {}
    for number, node in enumerate(nodes):
        first.setdefault(place.get(node, -1), number)
    return tuple(sorted(nodes, key=lambda node: first[place.get(node, -1)]))


def _switches(text: str) -> list[set[str]]:
    """Return the nodes of each switch that nodes hang on, or block of nodes, that Slurm knows."""
    lines = [line for line in text.splitlines() if re.search(r"Level=0|^BlockName=", line)]
    return [set(host_names(listed)) for line in lines if (listed := _field(line, "Nodes"))]


def gone(nodes: Sequence[str]) -> set[str]:
    """Return those of the nodes on which nothing can be started, as Slurm sees them now."""
    text = call_again(["scontrol", "show", "node", ",".join(nodes), "--oneliner"])
    states = {_field(line, "NodeName"): _field(line, "State") for line in text.splitlines()}
    return {node for node, state in states.items() if any(word in _words(state) for word in _GONE)}


def silent(nodes: Sequence[str]) -> set[str]:
    """Return those of the nodes on which a process cannot be started within _ANSWER_S: Slurm itself
    may take minutes to see that a node is lost. Called inside of a job."""
    words = ["srun", "--overlap", "--quiet", "--nodes=1", "--ntasks=1"]
    asked = {
        node: subprocess.Popen(
            [*words, f"--nodelist={node}", "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for node in nodes
    }
    deadline = time.monotonic() + _ANSWER_S
    return {node for node, process in asked.items() if not _answers(process, deadline)}


def _answers(process: subprocess.Popen, deadline: float) -> bool:
    try:
        return process.wait(max(deadline - time.monotonic(), 0.1)) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        return False


def _words(state: str) -> set[str]:
    """Return the words of a state such as IDLE+DRAIN or DOWN*, of which the mark is a word."""
    words = set(re.findall(r"[A-Z_]+", state))
    return words | ({"NOT_RESPONDING"} if "*" in state else set())


def job_state(job: str) -> str:
    """Return a job's state, such as RUNNING or PENDING; "" of one that Slurm has forgotten."""
    try:
        return (states_of(job) or [""])[0]
    except SlurmError:
        return ""


def states_of(job: str) -> list[str]:
    """Return the state of a job, or of each task of an array; none where Slurm knows no such job.
    Raises SlurmError where it does not answer."""
    try:
        text = call(["scontrol", "show", "job", job, "--oneliner"])
    except SlurmError as error:
        if any(text in str(error) for text in _UNKNOWN_JOB):
            return []
        raise
    return [_field(line, "JobState") for line in text.splitlines() if line.strip()]


def end_time(job: str) -> float | None:
    """Return when a job's time ends, in seconds since the epoch; None for never."""
    text = _field(call(["scontrol", "show", "job", job, "--oneliner"]), "EndTime")
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def nodes_in(partition: str) -> set[str]:
    """Return the nodes of a partition, whatever their state."""
    words = ["sinfo", "--noheader", "--Node", "--format=%N"]
    return set(call([*words, f"--partition={partition}"] if partition else words).split())


def requeue(job: str, without: Sequence[str] = (), nodes: int = 1) -> None:
    """Queue this very job again, which ends it here; it is not to run on the nodes `without`.

    nodes: how many, where some are left out: of as many as before there may not be enough. Slurm
    ends what runs in the job at once, which the change must outlive.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # also of what is called from here
    call_again(["scontrol", "requeue", job])
    if without:
        change = f"ExcNodeList={','.join(sorted(without))}"
        count = [f"NumTasks={nodes}", f"NumNodes={nodes}"]  # a task a node
        call_again(["scontrol", "update", f"JobId={job}", change, *count])


def cancel_step(job: str, step: str) -> None:
    """End a step of a job; one that has ended is no error."""
    try:
        call(["scancel", f"{job}.{step}"])
    except SlurmError:
        pass


def _field(text: str, name: str) -> str:
    """Return the value of NAME=VALUE in what scontrol prints, "" where it is not there."""
    match = re.search(rf"(?:^|\s){name}=(\S*)", text)
    return match[1] if match else ""
