"""Options of a run that do not fit together are refused, with the numbers and the way out."""

import argparse

import pytest

from meshwright.runtime.training.options import (
    OptionError,
    RunOptions,
    add_arguments,
    run_options,
)
from meshwright.runtime.training.rule_options import rate_of


def _parsed(*words: str) -> RunOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run_options(vars(parser.parse_args(words)))


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


def test_the_default_warmup_fits_a_shorter_run() -> None:
    assert _parsed("--steps", "4").warmup == 4 and _parsed().warmup == RunOptions.warmup
