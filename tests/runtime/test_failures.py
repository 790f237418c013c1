"""Dead, hung and stopped ranks: the run ends in seconds, says who and where, and goes on."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from launching import RUN, TIMEOUT_S, after_step, children, complaint, losses, rank_pids
from sampling import mostly_long

from meshwright.runtime.data.tokenize import Settings, tokenize
from meshwright.runtime.launch import ranks
from meshwright.runtime.launch.heartbeat import Beacon


def test_a_killed_rank_ends_the_run_at_once_and_the_next_goes_on(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = started("--steps", "2000", "--save-every", "5", "--warmup", "0")
    after_step(run, 12)
    os.kill(rank_pids(process)[1], signal.SIGKILL)
    killed = time.monotonic()
    assert process.wait(10) == 1
    assert time.monotonic() - killed < 10
    message = complaint(process)
    assert message.startswith("error: rank 1 on ") and "killed by SIGKILL" in message
    assert "stage 0, action" in message
    before = losses(run)
    again = started("--steps", "16", "--resume", "auto", "--warmup", "0")
    assert again.wait(TIMEOUT_S) == 0
    after = losses(run)
    assert sorted(after) == list(range(16)), "each step once"
    assert {step: after[step] for step in before if step < 10} == {
        step: loss for step, loss in before.items() if step < 10
    }
    shared = [step for step in before if step < 16]
    assert [after[s] for s in shared] == [before[s] for s in shared], "the same bits"


@pytest.mark.long
def test_a_write_that_fails_on_one_rank_ends_the_run_before_the_next_save(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    """Rank 1 alone may write no file above 16 bytes, as on a host whose disk is full."""
    run = tmp_path / "run"
    process = started("--steps", "2000", "--save-every", "50")
    after_step(run, 3)
    resource.prlimit(rank_pids(process)[1], resource.RLIMIT_FSIZE, (16, 16))
    assert process.wait(TIMEOUT_S) == 2
    message = complaint(process)
    assert message.startswith(f"error: the checkpoint in {run}/checkpoints could not be written by")
    assert "by rank 1 on " in message and "File too large" in message and "rank 0" not in message
    assert 50 <= max(losses(run)) < 90, "the next save is after step 99"
    assert [path.suffix for path in (run / "checkpoints").iterdir()] == [".part"]


def _little_disk() -> None:
    """As on a host whose disk is full: marks fit, a checkpoint does not."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


# What a host does whose disk takes no more writes and gives no error.
STUCK = """
import time
from runtime.checkpoint import store
store.save_file = lambda *whatever: time.sleep(1000)
"""


@pytest.mark.long
def test_a_write_that_hangs_ends_the_run_on_all_ranks(program: Path, tmp_path: Path) -> None:
    """After ten times --hang-after; rank 0, whose own file is whole, says whose is not."""
    more = ("--steps", "2000", "--save-every", "2")
    ranks = _hanging(program, tmp_path, "1", f"exec({STUCK!r})", "1.2", *more)
    messages = _messages(ranks)
    assert [rank.returncode for rank in ranks] == [2, 2]
    said = "rank 1 did not write within 12 s, ten times --hang-after"
    assert all("could not be written by rank" in text and said in text for text in messages)
    assert max(losses(tmp_path / "run")) == 3, "at the next save"
    assert [path.suffix for path in (tmp_path / "run" / "checkpoints").iterdir()] == [".part"]


@pytest.mark.parametrize("steps", mostly_long(["1", "2000"], "1"))
def test_all_ranks_learn_that_the_last_write_failed_on_one(
    steps: str, program: Path, tmp_path: Path
) -> None:
    """No step comes after it that would tell them: it is the run's last, or a signal asked for it.
    Rank 0 waits for a file that rank 1 will never write."""
    words = [sys.executable, "main.py", *RUN, "--steps", steps, "--out", str(tmp_path / "run")]
    save = ["--save-every", "1"] if steps == "1" else []
    ranks = _by_hand(program, [*words, *save], _little_disk)
    try:
        if not save:
            after_step(tmp_path / "run", 1)
            ranks[0].send_signal(signal.SIGTERM)
        messages = [rank.communicate(timeout=TIMEOUT_S)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [2, 2]
    for message in messages:
        assert "could not be written by rank 1 on " in message and "File too large" in message
        assert "rank_00001.safetensors: " in message and "free space, keep fewer" in message


@pytest.mark.long
def test_a_shard_that_is_cut_off_under_way_ends_the_run_by_name(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    text, shards = tmp_path / "in.txt", tmp_path / "shards"
    text.write_bytes(bytes(range(1, 101)) * 1990)
    tokenize([str(text)], shards, Settings(shard_tokens=100_000))
    process = started("--steps", "20000", "--data", f"shards:{shards}")
    after_step(tmp_path / "run", 1)
    os.truncate(shards / "shard_00001.bin", 5000)
    assert process.wait(TIMEOUT_S) == 2
    message = complaint(process)
    assert message.startswith("error: ") and message.count("\n") == 1
    assert f"{shards}/shard_00001.bin has 5000 bytes, it had 99001 when the run began" in message


def test_a_rank_killed_by_a_mapped_file_that_got_shorter_says_what_that_means() -> None:
    for number, said in ((signal.SIGBUS, "a memory-mapped file"), (signal.SIGKILL, "memory?")):
        rank = ranks.Rank(0, SimpleNamespace(returncode=-number), None)  # type: ignore[arg-type]
        death = ranks._death(rank, saved=True)
        assert f"killed by {number.name} (" in death and said in death
        assert death.endswith("go on with --resume auto")
        assert ranks._death(rank, saved=False).endswith("the run ended, it had saved nothing")


def test_a_stopped_rank_is_named_within_the_bound(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = started("--steps", "2000", "--hang-after", "3")
    after_step(run, 3)
    os.kill(rank_pids(process)[1], signal.SIGSTOP)
    stopped = time.monotonic()
    assert process.wait(20) == 3
    assert time.monotonic() - stopped < 15
    message = complaint(process)
    assert message.startswith("error: no progress for 3 s: rank 1 on ") and "action" in message


@pytest.mark.long
def test_a_rank_that_stops_while_it_starts_is_named_within_the_bound(
    started: Callable[..., subprocess.Popen],
) -> None:
    """It stands at its first mark, or before; the other waits for it in the rendezvous."""
    process = started("--steps", "2000", "--hang-after", "0.8")
    while len(children(process)) < 2:
        time.sleep(0.01)
    time.sleep(0.2)  # not the launcher's own image any more
    os.kill(rank_pids(process)[1], signal.SIGSTOP)
    stopped = time.monotonic()
    assert process.wait(20) == 3
    assert 7 < time.monotonic() - stopped < 15
    message = complaint(process)
    assert message.startswith("error: no progress for 8 s: rank 1 on ")
    assert "has not come to its start" in message or "action LAUNCH" in message


# Stands where asked, as a file system or a network that does not answer would make it.
HANGS = """
import ctypes, os, sys, time
sys.argv[0] = "main.py"
sys.path.insert(0, os.getcwd())
from pathlib import Path
from runtime import entry
from runtime.launch import heartbeat
def hang(*_, **__):
    time.sleep(600)
def blocks(*_, **__):
    ctypes.PyDLL(None).sleep(600)  # and no other thread of Python's runs, as while a library loads
class Finder:
    def __init__(self, find):
        self.find = find
    def find_spec(self, name, *_):
        return self.find() if name == "runtime.launch.worker" else None
if "{rank}" in ("both", os.environ["RANK"]):
    {where}
entry.main(Path.cwd())
"""


# Hangs where it marks that it reads data, and so after all ranks met.
AT_DATA = """
mark = heartbeat.Beacon.mark
def hangs(self, kind, *more):
    mark(self, kind, *more)
    if kind == "DATA":
        hang()
heartbeat.Beacon.mark = hangs
"""


@pytest.mark.parametrize(
    ("where", "start_s", "said"),
    [
        ("hang()", 5, "has not come to its start"),
        pytest.param(
            f"exec({AT_DATA!r})", 10, "at step 0, stage 0, action DATA", marks=pytest.mark.long
        ),
    ],
)
def test_ranks_without_our_launcher_see_who_does_not_start(
    where: str, start_s: int, said: str, program: Path, tmp_path: Path
) -> None:
    """As torchrun starts them: each rank by itself, in a folder where marks of a run before lie."""
    Beacon(tmp_path / "run" / "beats", 1).mark("STEP")
    ranks = _hanging(program, tmp_path, "1", where, str(start_s / 10))
    try:
        _one_ends(ranks, 3)
        time.sleep(0.5)
    finally:
        for rank in ranks:
            rank.kill()
    messages = b"".join(rank.communicate()[1] for rank in ranks if rank.wait() == 3).decode()
    assert f"error: no progress for {start_s} s: rank 1 on " in messages and said in messages
    assert "rank 0" not in messages


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("heartbeat.Beacon._open = hang", 3, "rank {} on {} has not come to its start"),
        (
            "sys.meta_path.insert(0, Finder(hang))",
            3,
            "the straggler, at step 0, stage 0, action LAU",
        ),
        ("sys.meta_path.insert(0, Finder(blocks))", 1, "in find_spec"),
    ],
)
def test_ranks_that_all_hang_while_they_start_end_by_themselves(
    where: str, code: int, said: str, program: Path, tmp_path: Path
) -> None:
    """Nobody is left to see it: the run's folder, or that of torch, does not answer."""
    began = time.monotonic()
    ranks = _hanging(program, tmp_path, "both", where, "0.2")
    messages = _messages(ranks)
    assert time.monotonic() - began > 2
    assert [rank.returncode for rank in ranks] == [code, code]
    for number, message in enumerate(messages):
        assert said.format(number, socket.gethostname()) in message


# What a host would read on whose disk lies an older copy.
OTHER = """
from runtime.training import feed
opened = feed.open_reader
feed.open_reader = lambda name, **more: opened("random:256", **more)
"""


@pytest.mark.long
def test_ranks_that_see_different_data_end_before_the_first_step(
    program: Path, tmp_path: Path
) -> None:
    ranks = _hanging(program, tmp_path, "1", f"exec({OTHER!r})", "60")
    messages = _messages(ranks)
    assert [rank.returncode for rank in ranks] == [2, 2]
    assert all("rank 1 on " in text and "reads random:256 of " in text for text in messages)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def _hanging(
    program: Path, tmp_path: Path, rank: str, where: str, hang_after_s: str, *more: str
) -> list[subprocess.Popen]:
    script = HANGS.format(rank=rank, where=where)
    words = [sys.executable, "-c", script, *RUN, "--hang-after", hang_after_s, *more]
    return _by_hand(program, [*words, "--out", str(tmp_path / "run")])


def _by_hand(
    program: Path, words: list[str], before_rank_1: Callable[[], None] | None = None
) -> list[subprocess.Popen]:
    """Two ranks as torchrun starts them. before_rank_1: called in its process first."""
    environment = {**os.environ}
    environment.pop("PYTHONPATH", None)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    ranks = []
    for rank, before in (("0", None), ("1", before_rank_1)):
        environment |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
        ranks.append(
            subprocess.Popen(
                words, cwd=program, env=environment, stderr=subprocess.PIPE, preexec_fn=before
            )
        )
    return ranks


def _messages(ranks: list[subprocess.Popen]) -> list[str]:
    """What each rank printed as an error, once all have ended; none outlives this."""
    try:
        return [rank.communicate(timeout=TIMEOUT_S)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def _one_ends(processes: list[subprocess.Popen], code: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while code not in [process.poll() for process in processes]:
        assert time.monotonic() < deadline, f"no process ended with {code}"
        time.sleep(0.05)
