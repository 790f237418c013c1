"""Dead, hung and stopped ranks: the run ends in seconds, says who and where, and goes on."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshwright.cli import main
from meshwright.runtime import start
from meshwright.runtime.data.tokenize import Settings, tokenize
from meshwright.runtime.health import Beacon

CLI = [sys.executable, "-m", "meshwright.cli"]
RUN = ["--data", "demo", "--no-compile", "--eval-batches", "1", "--schedule", "constant"]
TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data-parallel ranks of the tiny preset."""
    folder = tmp_path_factory.mktemp("failures")
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:2", "--pin", "dp=2"]
    sizes += ["--pin", "zero=1"]  # both have something to write into a checkpoint
    assert main(["plan", "tiny", *sizes, "-o", str(folder / "plan.txt")]) == 0
    assert main(["compile", str(folder / "plan.txt"), "-o", str(folder / "program")]) == 0
    return folder / "program"


@pytest.fixture
def started(program: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts `meshwright run` into tmp_path/run in the background; none outlives the test."""
    processes = []

    def begin(*options: str) -> subprocess.Popen:
        command = [*CLI, "run", str(program), *RUN, *options, "--out", str(tmp_path / "run")]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()


def _rows(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def _losses(run: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in _rows(run) if "loss" in row}


def _after_step(run: Path, step: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while len(_rows(run)) <= step:
        assert time.monotonic() < deadline, f"step {step} did not come"
        time.sleep(0.02)


def _children(launcher: subprocess.Popen) -> list[str]:
    return Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()


def _ranks(launcher: subprocess.Popen) -> list[int]:
    """Process ids of the ranks, in order of rank."""
    found = {_rank_of(pid): int(pid) for pid in _children(launcher)}
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


def test_a_killed_rank_ends_the_run_at_once_and_the_next_goes_on(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = started("--steps", "2000", "--save-every", "5")
    _after_step(run, 12)
    os.kill(_ranks(process)[1], signal.SIGKILL)
    killed = time.monotonic()
    assert process.wait(10) == 1
    assert time.monotonic() - killed < 10
    message = process.stderr.read().splitlines()[-1]
    assert message.startswith("error: rank 1 on ") and "killed by SIGKILL" in message
    assert "stage 0, action" in message
    before = _losses(run)
    again = started("--steps", "16", "--resume", "auto")
    assert again.wait(TIMEOUT_S) == 0
    after = _losses(run)
    assert sorted(after) == list(range(16)), "each step once"
    assert {step: after[step] for step in before if step < 10} == {
        step: loss for step, loss in before.items() if step < 10
    }
    shared = [step for step in before if step < 16]
    assert [after[s] for s in shared] == [before[s] for s in shared], "the same bits"


def test_a_write_that_fails_on_one_rank_ends_the_run_before_the_next_save(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    """Rank 1 alone may write no file above 16 bytes, as on a host whose disk is full."""
    run = tmp_path / "run"
    process = started("--steps", "2000", "--save-every", "50")
    _after_step(run, 3)
    resource.prlimit(_ranks(process)[1], resource.RLIMIT_FSIZE, (16, 16))
    assert process.wait(TIMEOUT_S) == 2
    message = process.stderr.read()
    assert message.startswith(f"error: the checkpoint in {run}/checkpoints could not be written by")
    assert "by rank 1 on " in message and "File too large" in message and "rank 0" not in message
    assert 50 <= max(_losses(run)) < 90, "the next save is after step 99"
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


def test_a_write_that_hangs_ends_the_run_on_all_ranks(program: Path, tmp_path: Path) -> None:
    """After ten times --hang-after; rank 0, whose own file is whole, says whose is not."""
    more = ("--steps", "2000", "--save-every", "2")
    ranks = _hanging(program, tmp_path, "1", f"exec({STUCK!r})", "1.2", *more)
    messages = _messages(ranks)
    assert [rank.returncode for rank in ranks] == [2, 2]
    said = "rank 1 did not write within 12 s, ten times --hang-after"
    assert all("could not be written by rank" in text and said in text for text in messages)
    assert max(_losses(tmp_path / "run")) == 3, "at the next save"
    assert [path.suffix for path in (tmp_path / "run" / "checkpoints").iterdir()] == [".part"]


@pytest.mark.parametrize("steps", ["1", "2000"])
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
            _after_step(tmp_path / "run", 1)
            ranks[0].send_signal(signal.SIGTERM)
        messages = [rank.communicate(timeout=TIMEOUT_S)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [2, 2]
    for message in messages:
        assert "could not be written by rank 1 on " in message and "File too large" in message


def test_a_shard_that_is_cut_off_under_way_ends_the_run_by_name(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    text, shards = tmp_path / "in.txt", tmp_path / "shards"
    text.write_bytes(bytes(range(1, 200)) * 1000)
    tokenize([str(text)], shards, Settings(shard_tokens=100_000))
    process = started("--steps", "20000", "--data", f"shards:{shards}")
    _after_step(tmp_path / "run", 1)
    os.truncate(shards / "shard_00001.bin", 5000)
    assert process.wait(TIMEOUT_S) == 2
    message = process.stderr.read()
    assert message.startswith("error: ") and message.count("\n") == 1
    assert f"{shards}/shard_00001.bin has 5000 bytes, it had 99001 when the run began" in message


def test_a_rank_killed_by_a_mapped_file_that_got_shorter_says_what_that_means() -> None:
    for number, said in ((signal.SIGBUS, "a memory-mapped file"), (signal.SIGKILL, "memory?")):
        rank = start._Rank(0, SimpleNamespace(returncode=-number), None)  # type: ignore[arg-type]
        assert f"killed by {number.name} (" in start._death(rank) and said in start._death(rank)


def test_a_stopped_rank_is_named_within_the_bound(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = started("--steps", "2000", "--hang-after", "3")
    _after_step(run, 3)
    os.kill(_ranks(process)[1], signal.SIGSTOP)
    stopped = time.monotonic()
    assert process.wait(15) == 3
    assert time.monotonic() - stopped < 10
    message = process.stderr.read()
    assert message.startswith("error: no progress for 3 s: rank 1 on ") and "action" in message


def test_a_rank_that_stops_while_it_starts_is_named_within_the_bound(
    started: Callable[..., subprocess.Popen],
) -> None:
    """It stands at its first mark, or before; the other waits for it in the rendezvous."""
    process = started("--steps", "2000", "--hang-after", "0.8")
    while len(_children(process)) < 2:
        time.sleep(0.01)
    time.sleep(0.2)  # not the launcher's own image any more
    os.kill(_ranks(process)[1], signal.SIGSTOP)
    stopped = time.monotonic()
    assert process.wait(20) == 3
    assert 7 < time.monotonic() - stopped < 15
    message = process.stderr.read()
    assert message.startswith("error: no progress for 8 s: rank 1 on ")
    assert "has not come to its start" in message or "action LAUNCH" in message


# Stands where asked, as a file system or a network that does not answer would make it.
HANGS = """
import ctypes, os, sys, time
sys.argv[0] = "main.py"
sys.path.insert(0, os.getcwd())
from pathlib import Path
from runtime import entry, health
def hang(*_, **__):
    time.sleep(600)
def blocks(*_, **__):
    ctypes.PyDLL(None).sleep(600)  # and no other thread of Python's runs, as while a library loads
class Finder:
    def __init__(self, find):
        self.find = find
    def find_spec(self, name, *_):
        return self.find() if name == "runtime.launch" else None
if "{rank}" in ("both", os.environ["RANK"]):
    {where}
entry.main(Path.cwd())
"""


# Hangs where it marks that it reads data, and so after all ranks met.
AT_DATA = """
mark = health.Beacon.mark
def hangs(self, kind, *more):
    mark(self, kind, *more)
    if kind == "DATA":
        hang()
health.Beacon.mark = hangs
"""


@pytest.mark.parametrize(
    ("where", "start_s", "said"),
    [
        ("hang()", 5, "has not come to its start"),
        (f"exec({AT_DATA!r})", 10, "at step 0, stage 0, action DATA"),
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
        ("health.Beacon._open = hang", 3, "rank {} on {} has not come to its start"),
        ("sys.meta_path.insert(0, Finder(hang))", 3, "holds it up, at step 0, stage 0, action LAU"),
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
from runtime import session
opened = session.open_reader
session.open_reader = lambda name, **more: opened("random:256", **more)
"""


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_saves_and_leaves_with_its_own_code(
    number: signal.Signals, started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = started("--steps", "2000")
    _after_step(run, 3)
    process.send_signal(number)
    assert process.wait(TIMEOUT_S) == 75
    last = max(_losses(run))
    assert (run / "checkpoints" / f"step_{last + 1:08d}" / "manifest.json").exists()


def test_a_signal_while_ranks_start_is_not_lost(
    started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    process = started("--steps", "2000")
    while len(_children(process)) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 75
    assert sorted(_losses(tmp_path / "run")) == [0], "the step under way"


@pytest.mark.parametrize("moment", ["start", "step"])
def test_no_rank_outlives_a_killed_launcher(
    moment: str, started: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    """It would go on writing where the run that is started again writes."""
    process = started("--steps", "20000")
    if moment == "step":
        _after_step(tmp_path / "run", 1)
    while len(_children(process)) < 2:
        time.sleep(0.01)
    ranks = _ranks(process)
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


def test_train_restarts_by_itself(tmp_path: Path) -> None:
    run, job = tmp_path / "run", tmp_path / "job.toml"
    job.write_text(
        'model = "tiny"\nrestarts = 1\n[plan]\ncluster = "cpu:2"\nseq = 32\nglobal_batch = 4\n'
        'pin = ["dp=2"]\n[run]\nsteps = 80\nsave_every = 5\nno_compile = true\neval_batches = 1\n'
    )
    command = [*CLI, "train", str(job), "--out", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _after_step(run, 8)
        os.kill(_ranks(process)[0], signal.SIGKILL)
        said, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "restart 1 of 1" in said and "resumed" in said
    assert sorted(_losses(run)) == list(range(80))


class Attempts:
    """Stands for the starts of a program: each ends as told, after saving the steps it is told."""

    def __init__(self, out: Path, *ends: tuple[int, list[int]]) -> None:
        self.out, self.ends, self.resumed = out, list(ends), []

    def __call__(self, folder: Path, options: dict, port: int, quiet: bool) -> tuple[int, bool]:
        self.resumed.append(options.get("resume"))
        code, saved = self.ends.pop(0)
        for step in saved:
            (self.out / "checkpoints" / f"step_{step:08d}").mkdir(parents=True)
        return code, False


def test_a_restart_goes_on_from_what_the_run_saved_else_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of another run in the same folder is not what the run goes on from."""
    out = tmp_path / "run"
    (out / "checkpoints" / "step_00000002").mkdir(parents=True)
    given = {"resume": "/other/checkpoints/step_00000100", "out": str(out)}
    attempts = Attempts(out, (1, []), (3, [104]), (1, []), (0, [108]))
    monkeypatch.setattr(start, "_start_once", attempts)
    said: list[str] = []
    assert start.start_with_restarts(tmp_path, given, 5, say=said.append) == 0
    assert attempts.resumed == [given["resume"]] * 2 + ["auto"] * 2
    assert "as it began" in said[0] and all("newest good" in text for text in said[1:])


def test_a_restart_that_is_refused_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of what was saved reads, say: it will not the next time either."""
    out = tmp_path / "run"
    attempts = Attempts(out, (1, [4]), (2, []))
    monkeypatch.setattr(start, "_start_once", attempts)
    assert start.start_with_restarts(tmp_path, {"out": str(out)}, 5, say=lambda _: None) == 2
    assert attempts.resumed == [None, "auto"]


def test_a_new_run_keeps_what_an_earlier_one_left(program: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["run", str(program), *RUN, "--steps", "4", "--save-every", "2", "--out", str(run)]
    assert main(command) == 0
    first = _losses(run)
    assert main([*command, "--seed", "1", "--keep", "1"]) == 0
    earlier = run / "earlier-001"
    assert _losses(earlier) == first and _losses(run) != first
    assert len(list((earlier / "checkpoints").glob("step_*"))) == 2
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_00000004"]


def test_going_back_sets_later_checkpoints_aside(program: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["run", str(program), *RUN, "--save-every", "2", "--warmup", "0"]
    command += ["--out", str(run)]
    assert main([*command, "--steps", "6"]) == 0
    whole = _losses(run)
    back = str(run / "checkpoints" / "step_00000002")
    assert main([*command, "--steps", "4", "--keep", "1", "--resume", back]) == 0
    assert _losses(run) == {step: whole[step] for step in range(4)}
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_00000004"]
    aside = sorted(p.name for p in (run / "earlier-001").iterdir())
    assert aside == ["step_00000004", "step_00000006"]


def test_going_on_from_another_runs_checkpoint_mixes_nothing(program: Path, tmp_path: Path) -> None:
    """What lies in the folder is of neither run: its log and checkpoints go aside."""
    command = ["run", str(program), *RUN, "--save-every", "2", "--warmup", "0"]
    for name, more in (("one", []), ("used", ["--lr", "0.1"])):
        assert main([*command, *more, "--steps", "4", "--out", str(tmp_path / name)]) == 0
    start_at = str(tmp_path / "one" / "checkpoints" / "step_00000002")
    run = tmp_path / "used"
    assert main([*command, "--steps", "4", "--resume", start_at, "--out", str(run)]) == 0
    whole = _losses(tmp_path / "one")
    assert _losses(run) == {step: whole[step] for step in (2, 3)}
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_00000004"]
    assert len(list((run / "earlier-001" / "checkpoints").iterdir())) == 2


def test_a_job_in_a_used_folder_moves_what_was_there(tmp_path: Path) -> None:
    run, job = tmp_path / "run", tmp_path / "job.toml"
    job.write_text(
        'model = "tiny-llama"\n[plan]\ncluster = "cpu:1"\nseq = 32\nglobal_batch = 4\n'
        "[run]\nsteps = 2\nno_compile = true\neval_batches = 1\n"
    )
    assert main(["train", str(job), "--out", str(run)]) == 0
    first = (run / "plan.txt").read_text()
    refused = ["train", str(job), "--out", str(run), "--set", "run.data=file:nope.bin"]
    assert main([*refused, "--set", "plan.search=false"]) == 2
    earlier = run / "earlier-001"
    assert (earlier / "plan.txt").read_text() == first and len(_losses(earlier)) == 2
    assert (earlier / "program" / "main.py").exists()
    assert f'out = "{run}"' in (earlier / "job.toml").read_text(), "as resolved"
    assert not (run / "plan.txt.report.txt").exists(), "of the plan before"


def test_a_file_for_a_folder_is_refused(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["run", str(program), *RUN, "--out", str(tmp_path / "taken")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --out") and "is a file" in error
