"""Checkpoints on a disk of each host's own: what a run goes on from where they are whole, and not.

The two ranks believe to be on hosts of their own. The oracle is the undisturbed run.
"""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import RUN, TIMEOUT_S, losses
from sampling import mostly_long

from meshwright.cli import main
from meshwright.runtime.checkpoint.fast import host_folder
from meshwright.runtime.fast_mark import read_mark
from meshwright.runtime.training.options import OptionError, RunOptions

STEPS, DIES_AFTER = 10, 8
HOSTS = ("a", "b")
# Files are written behind the steps: a rank dies once the run was told of the one of 6.
DIE = f"""import os, time
from pathlib import Path
from runtime.fast_mark import read_mark
def at(event):
    if event.step == {DIES_AFTER} and not os.path.exists("{{0}}"):
        until = time.monotonic() + 60
        while read_mark(Path("{{1}}")) < 6 and time.monotonic() < until:
            time.sleep(0.01)
        open("{{0}}", "w").close()
        os._exit(9)
"""


def start(
    program: Path,
    words: list[str],
    hosts: tuple[str, str],
    before: Callable[[], None] | None,
    own_code: Path,
) -> tuple[list[int], str]:
    """Run both ranks as a launcher on each host does; return their codes and what they said."""
    environment = {**os.environ, "PYTHONPATH": str(own_code)}
    with socket.create_server(("127.0.0.1", 0)) as probe:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    ranks = []
    for number, host in enumerate(hosts):
        own = {"RANK": str(number), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "SLURMD_NODENAME": host}
        ranks.append(
            subprocess.Popen(
                [sys.executable, "main.py", *words],
                cwd=program,
                env=environment | own,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=before if number else None,
                text=True,
            )
        )
    said = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in ranks]
    return [rank.returncode for rank in ranks], said[0]


class Case:
    """A run of two hosts in a folder of its own."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program, self.out, self.fast = program, folder / "run", folder / "fast"
        self.kept, self.own = folder / "kept", folder / "own"
        self.own.mkdir()

    def run(
        self, *more: str, hosts: tuple[str, str] = HOSTS, before: Callable[[], None] | None = None
    ) -> tuple[list[int], str]:
        words = [*RUN, "--steps", str(STEPS), "--warmup", "0", "--save-every", "4"]
        words += ["--fast-dir", str(self.fast), "--fast-every", "3", "--out", str(self.out), *more]
        return start(self.program, words, hosts, before, self.own)

    def saved(self, host: str, step: int) -> Path:
        return host_folder(self.fast, self.out).with_name(host) / f"step_{step:08d}"

    def keep(self) -> None:
        for folder in (self.out, self.fast):
            shutil.copytree(folder, self.kept / folder.name)

    def put_back(self) -> None:
        for folder in (self.out, self.fast):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.kept / folder.name, folder)


@pytest.fixture(scope="module")
def whole(program: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    words = ["--steps", str(STEPS), "--warmup", "0", "--out", str(out)]
    assert main(["run", str(program), *RUN, *words]) == 0
    return losses(out)


@pytest.fixture(scope="module")
def broken(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A run that died after step 8, with durable checkpoints of 4 and 8 steps and fast ones of 3, 6
    and, were it not for its death, 9; the durable one of 8 is gone, as by a slow disk."""
    case = Case(program, tmp_path_factory.mktemp("broken"))
    (case.own / "dying.py").write_text(DIE.format(case.own / "died", case.out))
    codes, said = case.run("--callback", "py:dying:at")
    assert 9 in codes, said
    shutil.rmtree(case.out / "checkpoints" / "step_00000008", ignore_errors=True)
    case.keep()
    return case


def test_the_newest_whole_step_of_either_tier_is_taken(
    broken: Case, whole: dict[int, float]
) -> None:
    broken.put_back()
    assert read_mark(broken.out) == 6
    codes, said = broken.run("--resume", "auto")
    assert codes == [0, 0], said
    assert f"resumed {broken.saved('a', 6)} after 6 steps" in said
    assert losses(broken.out) == whole
    assert not broken.saved("b", 6).parent.exists(), "removed at the end"
    assert json.loads((broken.out / "run.json").read_text())["starts"][-1]["step"] == 6


def lost(case: Case) -> str:
    """The node is another one, whose disk is empty."""
    shutil.rmtree(case.saved("b", 6).parent)
    return "passed over a fast checkpoint: step 6: 1 of 2 ranks find it on their host"


def flipped(case: Case) -> str:
    """A bit of rank 1's file is another."""
    file = case.saved("b", 6) / "rank_00001.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    return "contents differ from the manifest's SHA-256"


def cut(case: Case) -> str:
    """A manifest is empty."""
    (case.saved("b", 6) / "manifest.json").write_text("")
    return "passed over a fast checkpoint: step 6: 1 of 2 ranks find it on their host"


def swapped(case: Case) -> str:
    """Each host has the files of the other's rank, which do not cover what its own holds."""
    a, b = (case.saved(host, 6).parent for host in HOSTS)
    a.rename(a.with_name("c"))
    b.rename(a)
    a.with_name("c").rename(b)
    return "passed over a fast checkpoint: step 6: a: the checkpoint holds 0 of the"


@pytest.mark.parametrize("harm", mostly_long([lost, flipped, cut, swapped], lost))
def test_the_durable_one_is_taken_where_the_fast_one_is_not_whole(
    harm: Callable[[Case], str], broken: Case, whole: dict[int, float]
) -> None:
    broken.put_back()
    complaint = harm(broken)
    codes, said = broken.run("--resume", "auto")
    assert codes == [0, 0], said
    assert complaint in said and said.count("passed over a fast checkpoint: step 6") == 1
    assert "checkpoints/step_00000004 after 4 steps" in said
    assert losses(broken.out) == whole


@pytest.mark.long
def test_what_a_run_turned_away_from_counts_no_more(broken: Case, whole: dict[int, float]) -> None:
    """It began again with step 4 on other hosts, and comes back to the first ones after that."""
    broken.put_back()
    record = broken.out / "run.json"
    said = json.loads(record.read_text())
    said["starts"].append({**said["starts"][-1], "id": "0" * 16, "step": 4})
    record.write_text(json.dumps(said))
    codes, text = broken.run("--resume", "auto")
    assert codes == [0, 0], text
    assert "checkpoints/step_00000004 after 4 steps" in text
    assert losses(broken.out) == whole


def _little_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))


def test_a_full_disk_of_a_host_is_said_once_and_the_run_goes_on(
    program: Path, whole: dict[int, float], tmp_path: Path
) -> None:
    """Rank 1 may write no large file; its durable checkpoints would not do either: none is due."""
    case = Case(program, tmp_path)
    more = ("--save-every", "100", "--fast-every", "2", "--steps", str(STEPS - 1))
    codes, said = case.run(*more, before=_little_disk)
    assert said.count("warning: a fast checkpoint could not be written: rank 1 on b in") == 1, said
    assert "File too large" in said and "the run goes on without" in said
    assert losses(case.out) == {step: whole[step] for step in range(STEPS - 1)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fast_dir": "/x"}, "--fast-dir '/x' and --fast-every 0: one says nothing without"),
        ({"fast_every": 5}, "--fast-dir '' and --fast-every 5: one says nothing without"),
        ({"fast_dir": "/x", "fast_every": 5, "save_every": 5}, "no more often than --save-every 5"),
        ({"fast_dir": "/x", "fast_every": 5, "save_minutes": 0.0}, "with --save-every 0 and --sav"),
        ({"fast_every": -1}, "--fast-every -1: give at least 0"),
    ],
)
def test_options_of_the_fast_tier_are_refused_with_both_numbers(given: dict, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        RunOptions(**given)
