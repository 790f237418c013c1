"""Parameter groups and other words to an optimizer: read, matched in order, or refused."""

from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.runtime.launch.job import JobError, load_job
from meshwright.runtime.launch.words import option_words
from meshwright.runtime.optimizers import muon
from meshwright.runtime.optimizers.options import Group, OptimizerOptions, parse_group
from meshwright.runtime.training.options import OptionError, RunOptions, run_options


def test_the_first_group_that_fits_counts() -> None:
    texts = ("*.q.weight:lr_scale=0.5", "layers.0.*:weight_decay=0.2,lr_scale=2")
    options = OptimizerOptions(weight_decay=0.1, groups=tuple(map(parse_group, texts)))
    assert options.group_of("layers.0.q.weight", decays=True) == Group("", 0.5, 0.1)
    assert options.group_of("layers.0.norm.weight", decays=False) == Group("", 2.0, 0.2)
    assert options.group_of("norm.weight", decays=False) == Group("", 1.0, 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("*.weight", "expected MATCH:"),
        (":lr_scale=1", "expected MATCH:"),
        ("*:lr=1", "'lr'"),
        ("*:lr_scale=1,lr_scale=2", "once"),
        ("*:lr_scale=much", "lr_scale=much"),
        ("*:weight_decay=-1", "weight_decay=-1"),
        ("*:lr_scale=nan", "lr_scale=nan"),
    ],
)
def test_a_group_that_cannot_be_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(OptionError, match="--group") as caught:
        RunOptions(groups=(text,))
    assert said in str(caught.value)


JOB = """
model = "tiny-llama"
[plan]
seq = 32
global_batch = 8
[run]
optimizer = "muon"
[[run.groups]]
match = "*.bias"
lr_scale = 0.5
[[run.groups]]
match = "lm_head.*"
weight_decay = 0
"""


def test_a_jobs_groups_reach_the_command_line_and_its_resolved_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    job = load_job(tmp_path / "job.toml", [])
    words = option_words(job.run)
    assert words == [
        "--optimizer", "muon", "--group", "*.bias:lr_scale=0.5", "--group",
        "lm_head.*:weight_decay=0",
    ]  # fmt: skip
    (tmp_path / "again.toml").write_text(job.text)
    assert load_job(tmp_path / "again.toml", []).run == job.run
    assert run_options(job.run).groups == job.run["groups"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"muon"', '"moon"', "adamw, sgd"),
        ("lr_scale = 0.5", "lr = 0.5", "'lr'"),
        ('match = "*.bias"', "", "expected a table with match"),
    ],
)
def test_a_job_with_wrong_words_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / "job.toml").write_text(JOB.replace(old, new))
    with pytest.raises(JobError, match=r"\[run\]") as caught:
        load_job(tmp_path / "job.toml", [])
    assert said in str(caught.value)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank, float32, planned for Lion."""
    top = tmp_path_factory.mktemp("lion")
    sizes = ["--seq", "16", "--global-batch", "2", "--cluster", "cpu:1", "--pin", "optimizer=lion"]
    assert main(["plan", "tiny-llama", *sizes, "-o", str(top / "plan.txt")]) == 0
    assert main(["compile", str(top / "plan.txt"), "-o", str(top / "program")]) == 0
    return top


RUN = ["--data", "demo", "--no-compile", "--steps", "1", "--eval-batches", "1"]


def test_a_run_takes_the_plans_optimizer_and_says_so_when_it_takes_another(
    program: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = ["run", str(program / "program"), *RUN, "--save-every", "1", "--out"]
    assert main([*run, str(program / "lion")]) == 0
    assert "counted on" not in capfd.readouterr().err
    assert main([*run, str(program / "sgd"), "--optimizer", "sgd"]) == 0
    assert "optimizer sgd; the plan counted on lion" in capfd.readouterr().err
    start = str(program / "sgd" / "checkpoints" / "step_00000001")
    again = ["--steps", "2", "--allow-change", "--resume", start, "--out", str(program / "other")]
    assert main(["run", str(program / "program"), *RUN, *again]) == 2
    error = capfd.readouterr().err
    assert "holds the state of sgd, this run has lion" in error and "--optimizer sgd" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--group", "blocks.*:lr_scale=2"], "fits 0 of the model's"),
        pytest.param(
            ["--rounding", "stochastic"], "this plan updates float32", marks=pytest.mark.long
        ),
        pytest.param(
            ["--optimizer", "schedule-free", "--beta1", "0"], "--beta1 0.0", marks=pytest.mark.long
        ),
    ],
)
def test_what_does_not_fit_the_program_is_refused(
    program: Path, words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(program / "program"), *RUN, *words, "--out", str(program / "no")]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ") and said in error and "Traceback" not in error


def test_a_plan_for_an_optimizer_counts_its_state(program: Path, tmp_path: Path) -> None:
    """The same sizes for AdamW, which keeps twice as much."""
    from meshwright.ir.text.plan_text import parse_plan
    from meshwright.planner.hardware.cluster_file import parse_cluster
    from meshwright.planner.simulate.stage_memory import plan_peaks
    from meshwright.planner.simulate.step_model import step_model

    sizes = ["--seq", "16", "--global-batch", "2", "--cluster", "cpu:1"]
    assert main(["plan", "tiny-llama", *sizes, "-o", str(tmp_path / "plan.txt")]) == 0
    found = {}
    for path in (program / "plan.txt", tmp_path / "plan.txt"):
        plan = parse_plan(path.read_text())
        (peak,) = plan_peaks(plan, step_model(plan, parse_cluster("cpu:1")))
        found[plan.optimizer] = dict(peak.bytes_by_kind)["optimizer"]
    assert found["adamw"] == 2 * found["lion"] > 0


def test_chunks_of_matrices_hold_empty_ones_too() -> None:
    """A parameter of no elements is one of those that Muon updates at once."""
    most = muon.MOST_AT_ONCE
    assert muon.chunks("abc", [0, most, 1]) == [["a", "b"], ["c"]]
    assert muon.chunks("ab", [most + 1, 0]) == [["a"], ["b"]]
    assert muon.chunks("", []) == []
