"""Recorded micro-batches under the law: a recording reads what every step and micro-batch gives.

There is no CUDA graph on a CPU: a recording is the call itself here, run again on the tensors that
it was recorded with.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from equivalence.cases import DROPPED, Case, ModelDraw
from equivalence.compare import LawError
from equivalence.law import Court

_TIED = ModelDraw("llama", stock=False, variant=3, seed=0)
_DROPPED = ModelDraw(DROPPED, False, 0, 0)
ALONE = Case(number=3100, seed=0, model=_TIED, accumulation=3)
CUT = Case(number=3101, seed=0, model=_TIED, dp=2, zero=1, accumulation=3)
DRAWS = Case(number=3102, seed=1, model=_DROPPED, accumulation=2)
CASES = [
    ALONE, CUT, DRAWS,
    Case(number=3103, seed=0, model=_TIED, tp=2, accumulation=2, recompute="all"),
    Case(number=3104, seed=0, model=_TIED, dp=2, zero=3, accumulation=1),
    Case(number=3105, seed=0, model=_TIED, rep=2, dp=2, zero=2, accumulation=1, resume=2),
]  # fmt: skip
ENGINE = Path("runtime/engine")
# Of the runtime: file, pattern and what takes its place.
_ON_CPU = (
    ("executor.py", r'self\.device\.type != "cuda"', "False"),
    (
        "replay.py",
        r"(?s)    pool = torch\.cuda.*?return record\n",
        "    return lambda call: call\n",
    ),
)
_PLANTS = {
    "every micro-batch is the first": (ALONE, "replay.py", r"_copy\(self\._given, \w+\)", "pass"),
    "every step draws as the first": (DRAWS, "stage.py", r"own\.copy_\(new\)", "pass"),
    "the last micro-batch is as all others": (CUT, "executor.py", r"alike=[^)]+\)", "alike=True"),
    "losses of the steps before": (ALONE, "executor.py", r"self\._loss\.zero_\(\)", "pass"),
}


def _record(folder: Path) -> None:
    """Let a program record its micro-batches on a CPU."""
    _change(folder / "layout.py", r"\n\)\n$", "\n    replays=True,\n)\n")
    for name, pattern, text in _ON_CPU:
        _change(folder / ENGINE / name, pattern, text)


def _change(path: Path, pattern: str, text: str) -> None:
    changed, times = re.subn(pattern, text, path.read_text())
    assert times, pattern
    path.write_text(changed)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_recorded_equals_the_plain_model(case: Case, court: Court) -> None:
    court.try_case(replace(case, steps=4), _record)


@pytest.mark.parametrize("name", _PLANTS)
def test_a_recording_that_keeps_what_changes_is_seen(name: str, court: Court) -> None:
    case, file, pattern, text = _PLANTS[name]

    def edit(folder: Path) -> None:
        _record(folder)
        _change(folder / ENGINE / file, pattern, text)

    with pytest.raises(LawError):
        court.try_case(replace(case, steps=4), edit)
