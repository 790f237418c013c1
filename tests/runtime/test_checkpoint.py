"""Checkpoints: any plan resumes any other's; damage and bombs are refused; nothing is unpickled."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sampling import mostly_long

from meshwright.cli import main
from meshwright.runtime.checkpoint.manifest import (
    CheckpointError,
    digest_of,
    newest_good,
    read_manifest,
)

PLANS = {
    "zero3": ["--cluster", "cpu:2", "--pin", "dp=2", "--pin", "zero=3", "--pin", "micro_batch=2"],
    "tp2": ["--cluster", "cpu:2", "--pin", "tp=2", "--pin", "shard_weights=1"],
    "one": ["--cluster", "cpu:1", "--pin", "zero=0"],
    "pp2": ["--cluster", "cpu:2", "--pin", "pp=2", "--pin", "micro_batch=4"],
    "zbv": ["--cluster", "cpu:2", "--pin", "schedule=zbv", "--pin", "pp=2"],
}
RUN = ["--data", "demo", "--no-compile", "--eval-batches", "1", "--schedule", "constant"]


def _losses(run: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of every plan, and a run of zero3 with checkpoints after steps 2 and 4."""
    top = tmp_path_factory.mktemp("checkpoints")
    for name, options in PLANS.items():
        sizes = ["--seq", "32", "--global-batch", "8", "--dtype", "f64", "--no-search"]
        plan = str(top / f"{name}.txt")
        assert main(["plan", "tiny-gemma2", *sizes, *options, "-o", plan]) == 0
        assert main(["compile", plan, "-o", str(top / name)]) == 0
    run = ["run", str(top / "zero3"), *RUN, "--steps", "4", "--save-every", "2"]
    assert main([*run, "--out", str(top / "first")]) == 0
    return top


@pytest.mark.parametrize("plan", mostly_long(["one", "tp2", "pp2", "zbv", "zero3"], "one", "tp2"))
def test_any_plan_resumes_with_the_same_losses(folder: Path, plan: str) -> None:
    start = folder / "first" / "checkpoints" / "step_00000002"
    out = folder / f"from_{plan}"
    run = ["run", str(folder / plan), *RUN, "--steps", "4", "--resume", str(start.resolve())]
    assert main([*run, "--out", str(out)]) == 0
    whole, resumed = _losses(folder / "first"), _losses(out)
    assert sorted(resumed) == [2, 3]
    for step, loss in resumed.items():
        assert abs(loss - whole[step]) <= 1e-12 * abs(whole[step])
    if plan == "zero3":  # the same plan: the same bits
        assert resumed == {step: whole[step] for step in (2, 3)}


# Three keep states of their own kinds; the other two are like AdamW, one tensor less.
@pytest.mark.parametrize(
    ("optimizer", "plan"),
    [
        ("muon", "tp2"),
        pytest.param("schedule-free", "pp2", marks=pytest.mark.long),
        pytest.param("adafactor", "tp2", marks=pytest.mark.long),
        pytest.param("sgd", "pp2", marks=pytest.mark.long),
        pytest.param("lion", "tp2", marks=pytest.mark.long),
    ],
)
def test_any_plan_resumes_any_optimizer(folder: Path, optimizer: str, plan: str) -> None:
    words = [*RUN, "--steps", "4", "--optimizer", optimizer]
    first, second = folder / f"{optimizer}_first", folder / f"{optimizer}_second"
    run = ["run", str(folder / "zero3"), *words, "--save-every", "2", "--out", str(first)]
    assert main(run) == 0
    start = str((first / "checkpoints" / "step_00000002").resolve())
    assert main(["run", str(folder / plan), *words, "--resume", start, "--out", str(second)]) == 0
    whole, resumed = _losses(first), _losses(second)
    assert sorted(resumed) == [2, 3]
    for step, loss in resumed.items():
        assert abs(loss - whole[step]) <= 1e-12 * abs(whole[step])
    ends = [_held_out(run) for run in (first, second)]
    assert ends[0] > 0 and abs(ends[0] - ends[1]) <= 1e-12 * ends[0]


FREEZE = ["--freeze", "*embed*,layers.0.*"]


@pytest.fixture(scope="module")
def frozen(folder: Path) -> Path:
    """Programs that train a part of the model, beside the others."""
    for name in ("zero3", "tp2", "one"):
        sizes = ["--seq", "32", "--global-batch", "8", "--dtype", "f64", "--no-search"]
        plan = str(folder / f"frozen_{name}.txt")
        assert main(["plan", "tiny-gemma2", *sizes, *PLANS[name], *FREEZE, "-o", plan]) == 0
        assert main(["compile", plan, "-o", str(folder / f"frozen_{name}")]) == 0
    return folder


def _went_on(folder: Path, first: str, second: str, words: list[str], out: str) -> list[Path]:
    """Runs of one program for four steps, and of another from its second on."""
    runs = [folder / f"{out}_{number}" for number in (1, 2)]
    begin = [*RUN, *words, "--steps", "4", "--save-every", "2", "--out", str(runs[0])]
    assert main(["run", str(folder / first), *begin]) == 0
    start = str((runs[0] / "checkpoints" / "step_00000002").resolve())
    go_on = [*RUN, *words, "--steps", "4", "--save-every", "4", "--resume", start]
    assert main(["run", str(folder / second), *go_on, "--out", str(runs[1])]) == 0
    return runs


def _kinds(run: Path, step: int, param: str) -> set[str]:
    stored = read_manifest(run / "checkpoints" / f"step_{step:08d}").boxes
    return {kind for kind, name in stored if name == param}


def _bytes_of(run: Path, step: int, param: str) -> torch.Tensor:
    """A parameter as a checkpoint of one rank has it."""
    path = run / "checkpoints" / f"step_{step:08d}"
    (item,) = read_manifest(path).boxes["param", param]
    return load_file(path / item.file)[item.key]


def test_a_frozen_run_goes_on_from_a_full_one(frozen: Path) -> None:
    first, second = _went_on(frozen, "one", "frozen_one", [], "full_then_frozen")
    assert _kinds(second, 4, "embed.weight") == {"param"}
    assert {"param", "exp_avg"} < _kinds(second, 4, "norm.weight")
    assert torch.equal(_bytes_of(first, 2, "embed.weight"), _bytes_of(second, 4, "embed.weight"))
    assert not torch.equal(_bytes_of(first, 2, "norm.weight"), _bytes_of(second, 4, "norm.weight"))


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["schedule-free", "adamw", "adafactor", "muon"])
def test_a_full_run_goes_on_from_a_frozen_one(
    frozen: Path, optimizer: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--optimizer", optimizer]
    name = f"frozen_then_full_{optimizer}"
    first, second = _went_on(frozen, "frozen_zero3", "tp2", words, name)
    assert "parameters were frozen in" in capfd.readouterr().err
    assert _kinds(first, 2, "embed.weight") == {"param"}
    assert _kinds(second, 4, "embed.weight") > {"param"}
    assert sorted(_losses(second)) == [2, 3]


@pytest.mark.long
def test_a_frozen_run_goes_on_under_another_plan(frozen: Path) -> None:
    first, second = _went_on(frozen, "frozen_zero3", "frozen_tp2", [], "frozen_moved")
    whole, resumed = _losses(first), _losses(second)
    assert sorted(resumed) == [2, 3]
    assert all(abs(loss - whole[step]) <= 1e-12 * whole[step] for step, loss in resumed.items())


def _held_out(run: Path) -> float:
    """The last evaluation, of averaged weights where the optimizer has them."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["eval_loss"] for row in rows if "eval_loss" in row][-1]


def test_auto_passes_over_a_damaged_newest_checkpoint(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "first", tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step_00000004" / "rank_00000.safetensors"
    data = bytearray(newest.read_bytes())
    data[-3] ^= 0xFF
    newest.write_bytes(data)
    run = ["run", str(folder / "one"), *RUN, "--steps", "4", "--resume", "auto"]
    assert main([*run, "--out", str(tmp_path / "run")]) == 0
    said = capfd.readouterr().err
    assert "passed over a checkpoint" in said and "SHA-256" in said
    assert "step_00000002 after 2 steps" in said


@pytest.mark.long
def test_auto_refuses_where_none_of_the_checkpoints_reads(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Starting at step 0 would put the days of a run aside without being asked."""
    out = tmp_path / "run"
    shutil.copytree(folder / "first", out)
    old, new = (out / "checkpoints" / f"step_0000000{step}" for step in (2, 4))
    (old / "rank_00001.safetensors").unlink()
    (new / "manifest.json").write_text("{")
    before = sorted(p.relative_to(out) for p in out.rglob("*") if "beats" not in p.parts)
    run = ["run", str(folder / "zero3"), *RUN, "--steps", "4", "--resume", "auto"]
    capfd.readouterr()
    assert main([*run, "--out", str(out)]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"error: none of the 2 checkpoints in {out / 'checkpoints'} can be")
    assert f"{new}: no readable manifest.json" in error and "rank 1" not in error
    assert f"{old / 'rank_00001.safetensors'}: is missing, the manifest says " in error
    assert "another --out" in error and "by --fresh" in error
    after = sorted(p.relative_to(out) for p in out.rglob("*") if "beats" not in p.parts)
    assert after == before, "nothing was moved"


def test_a_manifest_in_which_a_digit_flipped_is_passed_over(folder: Path, tmp_path: Path) -> None:
    """It is JSON still, and its files are whole: only its own digest tells."""
    copy = tmp_path / "step_00000002"
    shutil.copytree(folder / "first" / "checkpoints" / "step_00000002", copy)
    assert read_manifest(copy).state.updates == 2
    text = (copy / "manifest.json").read_text()
    assert text.count('"updates": 2') == 1
    (copy / "manifest.json").write_text(text.replace('"updates": 2', '"updates": 3'))
    with pytest.raises(CheckpointError, match="its own SHA-256"):
        read_manifest(copy)


HOSTILE = {
    "text for sizes": {"offsets": "ab", "sizes": "cd"},
    "fractions": {"offsets": [0.5], "sizes": [1.5]},
    "below zero": {"offsets": [-1], "sizes": [1]},
}


@pytest.mark.parametrize("name", [*HOSTILE, "nested"])
def test_a_manifest_that_someone_made_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "step_00000002"
    shutil.copytree(folder / "first" / "checkpoints" / "step_00000002", copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["ranks"][0]["boxes"][0].update(HOSTILE.get(name, {}))
    text = json.dumps(manifest | {"sha256": digest_of(manifest)})
    (copy / "manifest.json").write_text("[" * 99999 if name == "nested" else text)
    with pytest.raises(CheckpointError, match="manifest.json"):
        read_manifest(copy)


def test_a_file_that_cannot_be_read_is_passed_over(folder: Path, tmp_path: Path) -> None:
    """As a disk's bad sector: the manifest says a size, and reading fails."""
    run = tmp_path / "checkpoints"
    shutil.copytree(folder / "first" / "checkpoints", run)
    file = run / "step_00000004" / "rank_00000.safetensors"
    file.unlink()
    file.mkdir()
    text = (run / "step_00000004" / "manifest.json").read_text()
    manifest = json.loads(text)
    manifest["ranks"][0]["bytes"] = file.stat().st_size
    text = json.dumps(manifest | {"sha256": digest_of(manifest)})
    (run / "step_00000004" / "manifest.json").write_text(text)
    found, complaints = newest_good(run)
    assert found is not None and found.state.step == 2
    assert len(complaints) == 1 and "rank_00000.safetensors" in complaints[0]


def test_the_last_step_is_saved_too(folder: Path, tmp_path: Path) -> None:
    run = ["run", str(folder / "one"), *RUN, "--steps", "3", "--save-every", "2"]
    assert main([*run, "--out", str(tmp_path / "run")]) == 0
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step_00000002", "step_00000003"]


def _damage(run: Path, *steps: int) -> None:
    for step in steps:
        (run / "checkpoints" / f"step_{step:08d}" / "manifest.json").write_text("{")


@pytest.mark.parametrize("command", mostly_long(["export", "generate"], "export"))
def test_a_command_says_which_damaged_checkpoints_it_passed_over(
    command: str, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", str(tmp_path / "out")
    shutil.copytree(folder / "first", run)
    words = {"export": ["-o", out], "generate": ["--prompt", "def", "--max-tokens", "1"]}[command]
    _damage(run, 4)
    capfd.readouterr()
    assert main([command, str(run), *words, "--json"]) == 0
    said = capfd.readouterr()
    assert f"passed over a checkpoint: {run}/checkpoints/step_00000004: no readable" in said.err
    if command == "export":
        assert json.loads(said.out)["step"] == 2
        shutil.rmtree(out)
    else:
        assert "step_00000002, after 2 steps" in said.err
    _damage(run, 2)
    assert main([command, str(run), *words]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"error: none of the 2 checkpoints in {run}/checkpoints can be read")
    assert error.count("no readable manifest.json") == 2 and "--resume" not in error


class _Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("where", ["manifest.json", "rank_00000.safetensors"])
def test_a_pickle_bomb_is_refused_and_not_run(
    folder: Path, tmp_path: Path, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    bad, mark = tmp_path / "step_00000002", tmp_path / "exploded"
    shutil.copytree(folder / "first" / "checkpoints" / "step_00000002", bad)
    (bad / where).write_bytes(pickle.dumps(_Bomb(mark)))
    run = ["run", str(folder / "one"), *RUN, "--steps", "3", "--resume", str(bad)]
    assert main([*run, "--out", str(tmp_path / "run")]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ") and str(bad) in error and "Traceback" not in error
    assert "give --resume the path of an older checkpoint, or auto" in error
    assert not mark.exists()


MANIFESTS = {
    "absent": (None, "no readable manifest.json: No such file or directory"),
    "empty": ("{}", "manifest.json: lacks its version, expected 'meshwright checkpoint v1'"),
    "list": ("[]", "manifest.json: lacks its version"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_says_nothing_is_refused(name: str, tmp_path: Path) -> None:
    text, said = MANIFESTS[name]
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError) as refused:
        read_manifest(tmp_path)
    message = str(refused.value)
    assert said in message and message.count(str(tmp_path)) == 1, message


# A model, whether the checkpoint says itself what it is of, and what the message holds. The boxes
# of a smaller one lie within.
OTHER = {
    "fields": ("rope_theta = 500", True, "rope_theta is 10000.0 there and 500.0 here; resume with"),
    "names": ("tied = false", False, "parameter lm_head.weight is absent there and [256, 64] here"),
    "shapes": ("ffn = 24", False, "layers.0.ffn.down.weight is [64, 128] there and [64, 24] here"),
}


@pytest.mark.parametrize("name", mostly_long(OTHER, "fields", "shapes"))
def test_another_models_checkpoint_is_refused(
    folder: Path, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text, known, said = OTHER[name]
    (tmp_path / "model.toml").write_text(f'preset = "tiny-gemma2"\n{text}')
    plan = str(tmp_path / "other.txt")
    sizes = ["--seq", "32", "--global-batch", "8", "--dtype", "f64", "--no-search"]
    sizes += ["--cluster", "cpu:1"]
    assert main(["plan", str(tmp_path / "model.toml"), *sizes, "-o", plan]) == 0
    assert main(["compile", plan, "-o", str(tmp_path / "other")]) == 0
    start = (folder / "first" / "checkpoints" / "step_00000002").resolve()
    if not known:
        start = _rewritten(folder, tmp_path, lambda said: said.pop("identity"))
    run = ["run", str(tmp_path / "other"), *RUN, "--steps", "3", "--resume", str(start)]
    capfd.readouterr()
    assert main([*run, "--out", str(tmp_path / "run")]) == 2
    error = capfd.readouterr().err
    assert "of another model (tiny-gemma2" in error and said in error


def _edited(folder: Path, tmp_path: Path, **state: object) -> Path:
    """A copy of the checkpoint after step 2, its manifest's state changed."""

    def change(said: dict) -> None:
        said["state"] = {k: v for k, v in (said["state"] | state).items() if v is not None}

    return _rewritten(folder, tmp_path, change)


def _rewritten(folder: Path, tmp_path: Path, change: Callable[[dict], object]) -> Path:
    """A copy of the checkpoint after step 2, its manifest changed."""
    copy = tmp_path / "step_00000002"
    shutil.copytree(folder / "first" / "checkpoints" / "step_00000002", copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest | {"sha256": digest_of(manifest)}))
    return copy


@pytest.mark.long
def test_skipped_steps_do_not_count_as_updates(folder: Path, tmp_path: Path) -> None:
    """AdamW's bias correction goes on from the updates, not from the steps."""
    start = _edited(folder, tmp_path, updates=1)
    run = ["run", str(folder / "one"), *RUN, "--steps", "4", "--resume", str(start)]
    assert main([*run, "--out", str(tmp_path / "run")]) == 0
    whole, resumed = _losses(folder / "first"), _losses(tmp_path / "run")
    assert abs(resumed[2] - whole[2]) <= 1e-12 * whole[2]
    assert abs(resumed[3] - whole[3]) > 1e-6 * whole[3]


STATES = {
    "absent": ({"updates": None}, "malformed"),
    "kind": ({"step": "two"}, "malformed"),
    "seq": ({"seq": 64}, "of 64 tokens"),
    "samples": ({"samples": 3}, "3 rows"),
    "seed": ({"seed": 5}, "seed 5"),
    "optimizer": ({"optimizer": "lion"}, "--optimizer lion, or export"),
    "optimizer of ours": ({"optimizer": "lion"}, "goes through meshwright import"),
    "numbers": ({"numbers": {"rate_squares": "much"}}, "expected []"),
    "data": ({"data": "file:/old", "data_identity": "f" * 64}, "data file:/old (ffffffffffff)"),
}


@pytest.mark.parametrize("name", mostly_long(STATES, "absent", "seq", "optimizer", "data"))
def test_a_state_of_another_run_is_refused(
    folder: Path, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    state, said = STATES[name]
    start = _edited(folder, tmp_path, **state)
    run = ["run", str(folder / "one"), *RUN, "--steps", "4", "--resume", str(start)]
    assert main([*run, "--out", str(tmp_path / "run")]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ") and said in error and "Traceback" not in error


@pytest.mark.long
def test_what_a_dead_attempt_left_is_not_mixed_in(folder: Path, tmp_path: Path) -> None:
    stale = tmp_path / "run" / "checkpoints" / "step_00000002.part"
    stale.mkdir(parents=True)
    (stale / "rank_00001.json").write_text(
        '{"file": "gone", "bytes": 1, "sha256": "", "boxes": []}'
    )
    run = ["run", str(folder / "tp2"), *RUN, "--steps", "2", "--save-every", "2"]
    assert main([*run, "--resume", "auto", "--out", str(tmp_path / "run")]) == 0
    start = str(tmp_path / "run" / "checkpoints" / "step_00000002")
    assert (
        main(
            [
                *run[:1],
                str(folder / "one"),
                *RUN,
                "--steps",
                "3",
                "--resume",
                start,
                "--out",
                str(tmp_path / "again"),
            ]
        )
        == 0
    )
