"""Options of a run that do not fit together are refused, with the numbers and the way out."""

import argparse
from pathlib import Path

import pytest

from meshwright.runtime.launch.job import JobError, load_job
from meshwright.runtime.training.options import (
    OptionError,
    RunOptions,
    add_arguments,
    run_options,
)
from meshwright.runtime.training.rule_options import rate_of
from meshwright.runtime.training.spans import SpanError, program_tokens_per_step

TOKENS_PER_STEP = 2048


def _parsed(*words: str) -> RunOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run_options(vars(parser.parse_args(words)), lambda: TOKENS_PER_STEP)


def test_a_warmup_longer_than_the_run_is_refused() -> None:
    """Cut to the run, the same --warmup would mean other rates for other --steps."""
    with pytest.raises(
        OptionError, match="--warmup 20 is longer than the run, --steps 8: give --w"
    ):
        _parsed("--steps", "8", "--warmup", "20")
    assert _parsed("--steps", "20", "--warmup", "20").warmup == 20


def test_the_same_warmup_gives_the_same_rates_in_a_longer_run() -> None:
    short, long = (_parsed("--steps", n, "--warmup", "8") for n in ("8", "80"))
    assert [rate_of(s, short) for s in range(8)] == [rate_of(s, long) for s in range(8)]


@pytest.mark.parametrize(
    ("steps", "warmup"), [(4, 1), (50, 5), (100, 10), (1000, 30), (10**6, 2000)]
)
def test_the_default_warmup_is_a_share_of_the_run(steps: int, warmup: int) -> None:
    assert _parsed("--steps", str(steps)).warmup == warmup


def test_the_default_peak_is_lower_for_trained_weights() -> None:
    assert (_parsed().lr, _parsed("--weights", "hf").lr) == (1e-3, 2e-5)
    assert _parsed("--weights", "hf", "--lr", "1e-4").lr == 1e-4
    assert _parsed() == RunOptions()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("2048000tok", 1000),
        ("2048001tok", 1001),
        ("2.048Mtok", 1000),
        ("2e9tok", 976563),
        ("1.5Btok", 732422),
        ("50Ktok", 25),
    ],
)
def test_tokens_become_the_steps_that_hold_them(steps: str, expected: int) -> None:
    options = _parsed("--steps", steps, "--warmup", "10Ktok")
    assert (options.steps, options.warmup) == (expected, 5)


@pytest.mark.parametrize("text", ["5x", "2e9", "Mtok", "1Gtok", "-5tok", "1.5"])
def test_a_length_of_another_form_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _parsed(f"--steps={text}")
    assert ended.value.code == 2 and "tokens as 2e9tok or 500Mtok" in capsys.readouterr().err


def test_a_programs_plan_says_the_tokens_of_a_step(tmp_path: Path) -> None:
    plan = tmp_path / "plan.txt"
    with pytest.raises(SpanError, match="is missing"):
        program_tokens_per_step(tmp_path)
    plan.write_text("meshwright plan v2\nglobal_batch: 16\nseq: 128\n")
    assert program_tokens_per_step(tmp_path) == TOKENS_PER_STEP
    plan.write_text("meshwright plan v2\n")
    with pytest.raises(SpanError, match="names no global_batch"):
        program_tokens_per_step(tmp_path)


def test_a_job_takes_tokens_by_its_plans_sizes(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    text = 'model = "tiny"\n[run]\nsteps = "{}"\nwarmup = 9\n[plan]\nseq = 128\nglobal_batch = 16\n'
    path.write_text(text.format("20Ktok"))
    assert load_job(path, []).run["steps"] == "20Ktok"
    for steps, said in (
        ("8Ktok", "warmup 9 is longer than the run, --steps 4"),
        ("x", "run.steps is .x., expected"),
    ):
        path.write_text(text.format(steps))
        with pytest.raises(JobError, match=said):
            load_job(path, [])
