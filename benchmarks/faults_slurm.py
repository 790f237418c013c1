"""Faults of a job under Slurm, for faults.py: the job must end by itself, as the undisturbed run.

Needs the Slurm of `make slurm`, of which a node of a job is killed and started again.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meshwright.api.slurm import SlurmOptions, submit
from meshwright.runtime.slurm.attempts import Attempt, read_attempts
from meshwright.runtime.slurm.scheduler import call, job_state
from meshwright.runtime.training.past_run import RunError, read_run

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import slurm_here

LIMIT_S = 240.0
NAMES = (
    "lost node, one to spare",
    "SIGKILL of a rank",
    "SIGKILL of a rank, two tiers",
    "lost node, two tiers, one to spare",
    "scontrol requeue",
    "signal before the time ends",
)
KINDS = tuple(f"Slurm: {name}" for name in NAMES)
_ALIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED")


@dataclass(frozen=True)
class Struck:
    """detect_s: from the fault to the attempt's end; resume_s: from there to the next start's
    training. state: of the job at its end. victim: the node that was struck, "" for none."""

    detect_s: float
    resume_s: float
    state: str
    victim: str
    attempts: list[Attempt]


def missing() -> str:
    """Return what this machine lacks for these faults, "" for nothing."""
    os.environ["SLURM_CONF"] = str(slurm_here.CONF)
    return slurm_here.missing() or ("" if slurm_here.is_up() else "a Slurm that is up (make slurm)")


def strike(
    kind: str, program: Path, run: Path, rng: random.Random, options: dict, step: int
) -> Struck:
    """Submit a job, disturb it behind a step, and wait for its end."""
    spare = 1 if "spare" in kind else 0
    slurm = SlurmOptions(backoff=0.5, time="00:20:00", spare=spare)
    job = submit(program, slurm, options=options, out=run).job
    try:
        _until(job, lambda: _rows(run) > step)
        began = time.monotonic()
        victim = _disturb(kind, job, rng)
        _until(job, lambda: bool(read_attempts(run)))
        ended = time.monotonic()
        _until(job, lambda: _starts(run) > 1 or job_state(job) not in _ALIVE)
        resumed = time.monotonic()
        _until(job, lambda: job_state(job) not in _ALIVE)
    finally:
        subprocess.run(["scancel", "--quiet", job])
    if "lost node" in kind:
        slurm_here.start_node(victim)
        _until("", slurm_here.is_up)
    return Struck(ended - began, resumed - ended, job_state(job), victim, read_attempts(run))


def _disturb(kind: str, job: str, rng: random.Random) -> str:
    """Do what the kind says; return the node that was struck, "" for none."""
    if "lost node" in kind:
        slurm_here.kill_node("node2")
        return "node2"
    if "SIGKILL" in kind:
        rank = rng.randrange(2)
        _kill_rank(job, rank)
        return f"node{rank + 1}"
    if kind.endswith("requeue"):
        call(["scontrol", "requeue", job])
    else:
        call(["scancel", "--signal=USR1", "--batch", job])
    return ""


def _kill_rank(job: str, rank: int) -> None:
    wanted = {f"RANK={rank}".encode(), f"SLURM_JOB_ID={job}".encode()}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted <= set(path.read_bytes().split(b"\0")):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue


def _until(job: str, true: Callable[[], bool]) -> None:
    """Wait; a job that is queued again need not wait for its minute. Slurm ends one that starts
    before its nodes are free of it: its credential is revoked."""
    deadline, pending_s = time.monotonic() + LIMIT_S, 0.0
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"job {job} is {job_state(job)} after {LIMIT_S:g} s")
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
