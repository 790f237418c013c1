"""Jobs of the Slurm that tests start: submitted, watched, disturbed."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launching import losses

from meshwright.api.slurm import LIVE, SlurmOptions, Submission, submit
from meshwright.runtime.slurm.attempts import Attempt, read_attempts
from meshwright.runtime.slurm.scheduler import call, host_names, job_state

LIMIT_S = 240.0
# Between two looks at a job, and how long a waiting one is left alone.
_LOOK_S, _FREE_S = 0.2, 3.0
STEPS = 60
OPTIONS = {
    "data": "demo",
    "lr": 1e-4,  # at 1e-3 two orders of the same sums end 4e-5 apart, without a disturbance
    "steps": STEPS,
    "save_every": 5,
    "no_compile": True,
    "eval_batches": 1,
    "schedule": "constant",
}


def job_file(folder: Path, nodes: int, **plan: object) -> Path:
    """Write a job of the tiny preset on CPU nodes of one rank."""
    said = {"cluster": f"cpu:1x{nodes}", "seq": 32, "global_batch": 12, "search": False, **plan}
    path = folder / "job.toml"
    tables = {"plan": said, "run": OPTIONS}
    text = 'model = "tiny"\n'
    for name, values in tables.items():
        text += f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items())
    path.write_text(text)
    return path


def wait_until(done: Callable[[], bool], what: str) -> None:
    """Wait for something of no job in particular."""
    deadline = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(_LOOK_S)


class Job:
    """A job that was submitted. It is cancelled when it is left."""

    def __init__(
        self, target: Path, out: Path, more: dict[str, Any] | None = None, **slurm: Any
    ) -> None:
        """more: options of the run of a program."""
        options = {} if target.is_file() else {**OPTIONS, **(more or {})}
        given = {"backoff": 0.5, "time": "00:30:00", **slurm}
        self.made: Submission = submit(target, SlurmOptions(**given), options=options, out=out)
        self.id, self.out = self.made.job, out

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["scancel", "--quiet", self.id])
        self.until(lambda: job_state(self.id) not in LIVE, "its end after scancel")

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for something; a job that waits to be queued again need not wait a minute. One that
        starts before its nodes are free of it is ended: "Job credential revoked"."""
        deadline, pending = time.monotonic() + LIMIT_S, 0
        while not done():
            assert time.monotonic() < deadline, f"{what} did not come\n{self.log}"
            pending = pending + 1 if job_state(self.id) == "PENDING" else 0
            if pending > _FREE_S / _LOOK_S:
                subprocess.run(
                    ["scontrol", "update", f"JobId={self.id}", "StartTime=now"], capture_output=True
                )
            time.sleep(_LOOK_S)

    def after_step(self, step: int) -> None:
        """Wait until a step is done."""
        self.until(lambda: len(losses(self.out)) > step, f"step {step}")

    def finish(self) -> dict[int, float]:
        """Wait for the end of the job; return its losses by step."""
        self.until(lambda: job_state(self.id) not in LIVE, "its end")
        state = job_state(self.id)
        assert state == "COMPLETED", f"{state}\n{self.log}"
        return losses(self.out)

    def signal_batch(self, name: str) -> None:
        """Send a signal to the job's script alone, as Slurm does before the end of its time."""
        call(["scancel", f"--signal={name}", "--batch", self.id])

    def kill_rank(self, rank: int) -> None:
        """End a rank's process at once, as for want of memory."""
        wanted = {f"RANK={rank}".encode(), f"SLURM_JOB_ID={self.id}".encode()}
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                words = set(path.read_bytes().split(b"\0"))
            except OSError:
                continue
            if wanted <= words:
                os.kill(int(path.parent.name), signal.SIGKILL)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that the job has now, the one of its script first: Slurm grants others than
        node1 and on while a job before it leaves those."""
        listed = call(["squeue", "--noheader", "--format=%N", f"--jobs={self.id}"]).strip()
        return host_names(listed)

    @property
    def attempts(self) -> list[Attempt]:
        return read_attempts(self.out)

    @property
    def log(self) -> str:
        files = sorted((self.out / "slurm").glob("job-*.log"))
        return "\n".join(path.read_text(errors="replace") for path in files)
