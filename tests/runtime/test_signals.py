"""Signals that ask for a stop, and a launcher that is killed."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import TIMEOUT_S, after_step, children, losses, rank_pids
from sampling import mostly_long

from meshwright.runtime.training.past_run import read_run


@pytest.mark.parametrize(
    "number", mostly_long([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT], signal.SIGTERM)
)
def test_a_signal_saves_and_leaves_with_its_own_code(
    number: signal.Signals, started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = started("--steps", "2000")
    after_step(run, 3)
    process.send_signal(number)
    assert process.wait(TIMEOUT_S) == 75
    last = max(losses(run))
    assert (run / "checkpoints" / f"step_{last + 1:08d}" / "manifest.json").exists()


def test_a_ctrl_c_that_is_sent_twice_at_once_saves(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    """As by a terminal and by `timeout --foreground` in it."""
    run = tmp_path / "run"
    process = started("--steps", "2000")
    after_step(run, 3)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert process.wait(TIMEOUT_S) == 75
    assert (run / "checkpoints" / f"step_{max(losses(run)) + 1:08d}" / "manifest.json").exists()


@pytest.mark.long
def test_a_second_ctrl_c_ends_the_run_and_says_what_is_lost(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = started("--steps", "20000", "--save-every", "3")
    after_step(run, 4)
    os.kill(rank_pids(process)[1], signal.SIGSTOP)  # so that no rank comes to save
    process.send_signal(signal.SIGINT)
    time.sleep(1.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == 130
    saved = max(int(path.name[5:]) for path in (run / "checkpoints").glob("step_*"))
    assert process.stderr is not None
    assert f"the run goes on from step {saved} with: meshwright resume " in process.stderr.read()
    assert read_run(run).state == "interrupted"


@pytest.mark.long
def test_a_signal_while_ranks_start_is_not_lost(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    process = started("--steps", "2000")
    while len(children(process)) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 75
    assert sorted(losses(tmp_path / "run")) == [0], "the step under way"


@pytest.mark.parametrize("moment", ["start", "step"])
def test_no_rank_outlives_a_killed_launcher(
    moment: str, started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    """It would go on writing where the run that is started again writes."""
    process = started("--steps", "20000")
    if moment == "step":
        after_step(tmp_path / "run", 1)
    while len(children(process)) < 2:
        time.sleep(0.01)
    ranks = rank_pids(process)
    process.kill()
    deadline = time.monotonic() + 10
    while orphans := [pid for pid in ranks if _runs(pid)]:
        if time.monotonic() > deadline:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"{len(orphans)} ranks run on")
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """An ended process that nobody waits for keeps its number, but no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
