"""Runs that tests start in the background, and what shows of them from outside."""

import json
import subprocess
import sys
import time
from pathlib import Path

CLI = [sys.executable, "-m", "meshwright.cli"]
RUN = ["--data", "demo", "--no-compile", "--eval-batches", "1", "--schedule", "constant"]
TIMEOUT_S = 90.0


def rows(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def losses(run: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in rows(run) if "loss" in row}


def after_step(run: Path, step: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while len(rows(run)) <= step:
        assert time.monotonic() < deadline, f"step {step} did not come"
        time.sleep(0.02)


def complaint(launcher: subprocess.Popen) -> str:
    """What a run said from its error on; progress comes before it."""
    assert launcher.stderr is not None
    said = launcher.stderr.read()
    return said[said.find("error: ") :]


def children(launcher: subprocess.Popen) -> list[str]:
    return Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()


def rank_pids(launcher: subprocess.Popen) -> list[int]:
    """Process ids of the ranks, in order of rank."""
    found = {_rank_of(pid): int(pid) for pid in children(launcher)}
    return [found[rank] for rank in sorted(found)]


def _rank_of(pid: str) -> int:
    """Until it runs a program of its own, a child has its launcher's environment."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for word in words:
            if word.startswith(b"RANK="):
                return int(word.removeprefix(b"RANK="))
        time.sleep(0.01)
    raise AssertionError(f"process {pid} did not come to be a rank")
