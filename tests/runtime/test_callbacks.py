"""A user's own code at points of a run: what it is told, what it asks for, how it is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import losses

import meshwright
from meshwright.cli import main
from meshwright.runtime.own_code import OwnCodeError
from meshwright.runtime.training.callbacks import Callbacks, Event

CODE = """
import json

class Told:
    every_rank = True

    def _tell(self, event):
        row = [event.point, event.step, event.loss, event.eval_loss]
        row.append(event.checkpoint and event.checkpoint.name)
        with open(event.out / f"told_{event.rank}.jsonl", "a") as file:
            file.write(json.dumps(row) + "\\n")

    on_start = on_evaluation = on_save = on_stop = _tell

    def on_step_end(self, event):
        self._tell(event)
        if event.rank == 1 and event.step == 1:
            event.request_save()
        if event.rank == 1 and event.step == 3:
            event.request_stop()

def broken(event):
    return 1 // (event.step - event.step)

nothing = 3
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "told_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_what_one_rank_asks_for_all_ranks_do(program: Path, code: Path) -> None:
    """Rank 1 asks for a checkpoint at step 1 and for the end at step 3: both come a step later."""
    result = meshwright.run(
        program,
        callbacks=["py:told_code:Told"],
        data="demo",
        steps=50,
        eval_batches=1,
        no_compile=True,
        quiet=True,
        out=str(code / "run"),
    )
    assert (result.exit_code, result.state, len(result.losses)) == (0, "stopped", 5)
    assert [path.name for path in result.checkpoints] == ["step_00000003", "step_00000005"]
    assert result.evaluation is not None and result.evaluation.batches == 1
    for rank in range(2):
        lines = (result.folder / f"told_{rank}.jsonl").read_text().splitlines()
        told = [json.loads(line) for line in lines]
        points = [row[0] for row in told if row[0] != "on_save"]
        assert points == ["on_start", *["on_step_end"] * 5, "on_evaluation", "on_stop"]
        assert [row[2] for row in told if row[0] == "on_step_end"] == list(result.losses)
        assert told[-1][3] == result.evaluation.loss and told[-1][4] == "step_00000005"
        assert [row[4] for row in told if row[0] == "on_save"] == [
            p.name for p in result.checkpoints
        ]


def test_one_that_fails_ends_the_run_with_its_place(
    program: Path, code: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = code / "run"
    words = ["--data", "demo", "--steps", "9", "--no-compile", "--out", str(run)]
    assert main(["run", str(program), *words, "--callback", "py:told_code:broken"]) == 2
    error = capfd.readouterr().err
    assert (
        "--callback py:told_code:broken failed in on_step_end of step 0: ZeroDivisionError" in error
    )
    assert f"told_code.py:{CODE[: CODE.index('return 1')].count(chr(10)) + 1})" in error
    assert "Traceback" not in error and len(losses(run)) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("py:told_code:Tolled", "told_code has no 'Tolled'; did you mean Told"),
        ("py:told_code:nothing", "a int that has none of on_start, on_step_end"),
        ("py:no_module_here:f", "cannot import no_module_here"),
    ],
)
def test_a_name_that_leads_to_no_callback_is_refused(name: str, said: str, code: Path) -> None:
    with pytest.raises(OwnCodeError, match=said):
        Callbacks([name], Event("on_start", 0, 1, 0, code))


def local() -> Callable[[], None]:
    return lambda: None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (local(), "cannot be imported by the ranks.*define it at the top of a file"),
        (3, "a int cannot be carried to the ranks"),
    ],
)
def test_what_ranks_cannot_import_is_refused(given: object, said: str, program: Path) -> None:
    with pytest.raises(meshwright.MeshwrightError, match=said):
        meshwright.Trainer(program, callbacks=[given])
    with pytest.raises(meshwright.MeshwrightError, match="'step'; did you mean steps"):
        meshwright.Trainer(program, step=3)
