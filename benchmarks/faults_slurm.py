"""Faults of a job under Slurm, for faults.py: the job must end by itself, as the undisturbed run,
or in the stop that policy demands, from which a second job goes on.

Needs the Slurm of `make slurm`, of which a node of a job is killed and started again.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from meshwright.api.slurm import LIVE, SlurmOptions, submit
from meshwright.runtime.checkpoint.manifest import complete
from meshwright.runtime.control.client import address_in, send
from meshwright.runtime.control.commands import Command
from meshwright.runtime.slurm.attempts import Attempt, read_attempts
from meshwright.runtime.slurm.scheduler import call, job_state
from meshwright.runtime.training.past_run import RunError, read_run

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import slurm_here

LIMIT_S = 240.0
_REFUSED = "stop: the run is refused"


@dataclass(frozen=True)
class Case:
    """do: disturbs a job (its id, its run's folder) and returns the node struck, "" for none.
    spare: nodes more. setup: lines of the site's file. demanded: what the first attempt must say,
    where the job must stop. again: a second job then goes on to the end. planned_anew: a job file
    is submitted, whose plan changes. tiers: checkpoints in two tiers."""

    do: Callable[[str, Path, random.Random], str]
    spare: int = 0
    setup: str = ""
    demanded: str = ""
    again: bool = True
    planned_anew: bool = False
    tiers: bool = False


@dataclass(frozen=True)
class Struck:
    """detect_s: from the fault to the attempt's end; resume_s: from there to the next start's
    training. state: of the job at its end. victim: the node that was struck, "" for none. met: the
    job stopped where it must."""

    detect_s: float
    resume_s: float
    state: str
    victim: str
    attempts: list[Attempt]
    met: bool = True


def missing() -> str:
    """Return what this machine lacks for these faults, "" for nothing."""
    os.environ["SLURM_CONF"] = str(slurm_here.CONF)
    return slurm_here.missing() or ("" if slurm_here.is_up() else "a Slurm that is up (make slurm)")


def _lose(node: str, job: str, run: Path, rng: random.Random) -> str:
    slurm_here.kill_node(node)
    return node


def _lose_daemon(job: str, run: Path, rng: random.Random) -> str:
    """The daemon of a node alone: what it started runs on."""
    for pid in slurm_here._daemon("node2"):
        os.kill(pid, signal.SIGKILL)
    return "node2"


def _signal_rank(number: signal.Signals, job: str, run: Path, rng: random.Random) -> str:
    rank = rng.randrange(2)
    _kill(job, number, lambda words, _: f"RANK={rank}".encode() in words)
    return f"node{rank + 1}"


def _kill_agent(node: str, job: str, run: Path, rng: random.Random) -> str:
    """What starts the ranks of a node; they must not run on."""
    here = f"SLURMD_NODENAME={node}".encode()
    agent = lambda words, title: here in words and b"--agent" in title.split(b"\0")  # noqa: E731
    _kill(job, signal.SIGKILL, agent)
    return node


def _flip(job: str, run: Path, rng: random.Random) -> str:
    """A bit of the newest checkpoint, then a rank."""
    _until(job, lambda: len(complete(run / "checkpoints")) > 1)
    file = rng.choice(sorted(complete(run / "checkpoints")[-1].glob("*.safetensors")))
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return _signal_rank(signal.SIGKILL, job, run, rng)


def _requeue(job: str, run: Path, rng: random.Random) -> str:
    call(["scontrol", "requeue", job])
    return ""


def _signal_script(job: str, run: Path, rng: random.Random) -> str:
    call(["scancel", "--signal=USR1", "--batch", job])
    return ""


def _tell(command: Command, job: str, run: Path, rng: random.Random) -> str:
    send(address_in(run), command)
    return ""


def _wait(job: str, run: Path, rng: random.Random) -> str:
    return ""


_KILL = partial(_signal_rank, signal.SIGKILL)
_NODE_2 = partial(_lose, "node2")
_CASES = {
    "lost node, one to spare": Case(_NODE_2, spare=1),
    "SIGKILL of a rank": Case(_KILL),
    "SIGKILL of a rank, two tiers": Case(_KILL, tiers=True),
    "lost node, two tiers, one to spare": Case(_NODE_2, spare=1, tiers=True),
    "scontrol requeue": Case(_requeue),
    "signal before the time ends": Case(_signal_script),
    "SIGSTOP of a rank": Case(partial(_signal_rank, signal.SIGSTOP)),
    "SIGKILL of what starts a node's ranks": Case(partial(_kill_agent, "node2")),
    "flipped byte in the newest checkpoint, SIGKILL of a rank": Case(_flip),
    "lost node of the script": Case(partial(_lose, "node1")),
    "lost node daemon, one to spare": Case(_lose_daemon, spare=1),
    "lost node, planned anew": Case(_NODE_2, planned_anew=True),
    "disk full": Case(_wait, setup='setup = ["ulimit -f 1024"]', demanded=_REFUSED),
    "control abort": Case(partial(_tell, Command("abort")), demanded="stop: aborted"),
    "a rate that makes the loss spike": Case(
        partial(_tell, Command("set", {"lr": "1e6"})), demanded=_REFUSED, again=False
    ),
}
KINDS = tuple(f"Slurm: {name}" for name in _CASES)


def case_of(kind: str) -> Case:
    """Return the case of a kind."""
    return _CASES[kind.removeprefix("Slurm: ")]


def strike(
    case: Case, target: Path, run: Path, rng: random.Random, options: dict, step: int
) -> Struck:
    """Submit a job, disturb it behind a step, and wait for its end; of one that must stop, submit
    a second."""
    site = run.with_name(f"{run.name}_site.toml")
    site.write_text(case.setup)
    slurm = SlurmOptions(backoff=0.5, time="00:20:00", spare=case.spare, site=str(site))
    begin = partial(submit, target, options=options, out=run)
    found = _struck(case, begin(slurm).job, run, rng, step)
    if not case.demanded:
        return found
    met = found.attempts[0].then == case.demanded and found.state == "FAILED"
    if not case.again:
        return replace(found, met=met)
    ended, job = time.monotonic(), begin(replace(slurm, site="/dev/null")).job
    starts = _starts(run)
    _until(job, lambda: _starts(run) > starts or job_state(job) not in LIVE)
    resumed_s = time.monotonic() - ended
    _until(job, lambda: job_state(job) not in LIVE)
    return replace(found, met=met, state=job_state(job), resume_s=resumed_s)


def _struck(case: Case, job: str, run: Path, rng: random.Random, step: int) -> Struck:
    try:
        _until(job, lambda: _rows(run) > (0 if case.do is _wait else step))
        began = time.monotonic()
        victim = case.do(job, run, rng)
        away = victim == "node1"  # an attempt that is lost with its script tells nothing
        _until(job, lambda: bool(read_attempts(run)) or away and job_state(job) != "RUNNING")
        ended = time.monotonic()
        _until(job, lambda: _starts(run) > 1 or job_state(job) not in LIVE)
        resumed = time.monotonic()
        _until(job, lambda: job_state(job) not in LIVE)
    finally:
        subprocess.run(["scancel", "--quiet", job])
    repair()
    return Struck(ended - began, resumed - ended, job_state(job), victim, read_attempts(run))


def repair() -> None:
    """Start the daemons that are gone."""
    for path in slurm_here.FOLDER.glob("slurmd.*.pid"):
        name = path.name.split(".")[1]
        if not any(Path(f"/proc/{pid}").exists() for pid in slurm_here._daemon(name)):
            slurm_here.start_node(name)
    _until("", slurm_here.is_up)


def _kill(job: str, number: signal.Signals, wanted: Callable[[set[bytes], bytes], bool]) -> None:
    """Signal the processes of a job whose environment and command line are wanted."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = set((path / "environ").read_bytes().split(b"\0"))
            title = (path / "cmdline").read_bytes()
            if f"SLURM_JOB_ID={job}".encode() in words and wanted(words, title):
                os.kill(int(path.name), number)
        except OSError:
            continue


def _until(job: str, true: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait; a job that is queued again need not wait for its minute. Slurm ends one that starts
    before its nodes are free of it: its credential is revoked."""
    deadline, pending_s = time.monotonic() + limit_s, 0.0
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"job {job} is {job_state(job)} after {limit_s:g} s")
        pending_s = pending_s + 0.1 if job and job_state(job) == "PENDING" else 0.0
        if pending_s > 3.0:
            words = ["scontrol", "update", f"JobId={job}", "StartTime=now"]
            subprocess.run(words, capture_output=True)
        time.sleep(0.1)


def _rows(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


def _starts(run: Path) -> int:
    try:
        return len(read_run(run).said["starts"])
    except RunError:
        return 0


def job_file(folder: Path, options: dict) -> Path:
    """Write a job of the same model, batches and options, which is planned for the nodes it has."""
    plan = {"cluster": "cpu:1x2", "seq": 64, "global_batch": 8, "search": False}
    text = 'model = "tiny"\n'
    for name, values in {"plan": plan, "run": options}.items():
        text += f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items())
    path = folder / "job.toml"
    path.write_text(text)
    return path
