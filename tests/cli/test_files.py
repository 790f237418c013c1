"""What commands write, over what, and who may read it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from refusals import refused

from meshwright.cli import main
from meshwright.runtime.checkpoint import store
from meshwright.runtime.launch.heartbeat import Beacon

SIZES = ["tiny", "--seq", "8", "--global-batch", "4", "--no-search"]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one.txt, of one stage, and two.txt, of two."""
    folder = tmp_path_factory.mktemp("plans")
    for name, more in (("one", ["--cluster", "cpu:1"]), ("two", ["--cluster", "cpu:2"])):
        pins = ["--pin", "pp=2"] if name == "two" else []
        assert main(["plan", *SIZES, *more, *pins, "-o", str(folder / f"{name}.txt")]) == 0
    return folder


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_compile_leaves_nothing_of_an_older_program(plans: Path, tmp_path: Path) -> None:
    """And all that somebody put beside it."""
    for name, more in (("two", {"stage_01.py"}), ("one", set())):
        assert main(["compile", str(plans / f"{name}.txt"), "-o", str(tmp_path / "p")]) == 0
        stages = {found for found in _names(tmp_path / "p") if found.startswith("stage_")}
        assert stages == {"stage_00.py"} | more
        (tmp_path / "p" / "notes.md").write_text("mine")
        (tmp_path / "p" / "runtime" / "gone.py").write_text("of an older runtime")
    assert main(["compile", str(plans / "one.txt"), "-o", str(tmp_path / "p")]) == 0
    assert (tmp_path / "p" / "notes.md").read_text() == "mine"
    assert not (tmp_path / "p" / "runtime" / "gone.py").exists()


# Names in a folder that is no program's, and what is said of them.
HELD = {
    "one": (["notes.md"], "it holds notes.md;"),
    "many": (["d", "c", "b", "a"], "it holds a, b, c and 1 more;"),
    "another project's": (["layout.py", "main.py"], "it holds layout.py, main.py;"),
}


@pytest.mark.parametrize("name", HELD)
def test_compile_refuses_a_folder_of_other_things(
    name: str, plans: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    held, said = HELD[name]
    for file in held:
        (tmp_path / file).write_text("")
    message = refused(capsys, "compile", str(plans / "one.txt"), "-o", str(tmp_path))
    assert said in message and str(tmp_path) in message and "an empty folder" in message
    assert _names(tmp_path) == set(held)


def test_plan_writes_over_a_file_that_it_is_told_only(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["plan", *SIZES, "--cluster", "cpu:1"]
    assert main(words) == 0
    first = Path("plan.txt").read_text()
    Path("plan.txt").write_text("mine")
    message = refused(capsys, *words)
    assert "plan.txt is there already" in message and "-o plan.txt writes over it" in message
    assert Path("plan.txt").read_text() == "mine"
    assert main([*words, "-o", "plan.txt"]) == 0
    assert Path("plan.txt").read_text() == first


@pytest.mark.parametrize("command", ["run", "train"])
def test_a_run_folder_that_cannot_be_made_is_refused_before_anything_else(
    command: str,
    plans: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a rank was started"))
    if command == "run":
        assert main(["compile", str(plans / "one.txt"), "-o", str(tmp_path / "p")]) == 0
        words = ["run", str(tmp_path / "p")]
    else:
        (tmp_path / "job.toml").write_text('model = "tiny"\n[plan]\nseq = 8\nglobal_batch = 4\n')
        words = ["train", str(tmp_path / "job.toml")]
    message = refused(capsys, *words, "--out", "/proc/xx/yy")
    assert "--out /proc/xx/yy: nothing can be written to /proc (" in message
    assert "give another folder" in message and "Errno" not in message


def test_a_rank_alone_says_that_its_run_folder_cannot_be_made() -> None:
    with pytest.raises(OSError, match="^--out /proc/xx: nothing can be written there"):
        Beacon(Path("/proc/xx/beats"), 0).mark("LAUNCH")


@pytest.fixture(params=[0o022, 0o007])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_tensors_of_a_checkpoint_are_for_whom_the_umask_lets(umask: int, tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.safetensors"
    store._save({"w": torch.ones(3)}, path)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
