"""Dropout under every plan: what plain PyTorch computes with the same draws in its place."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from dropped_model import PLACES
from equivalence.cases import DROPPED, EACH, Case, ModelDraw
from equivalence.compare import LawError
from equivalence.law import Court
from sampling import mostly_long


def _model(variant: int) -> ModelDraw:
    return ModelDraw(DROPPED, False, variant, 0)


CASES = [
    Case(number=3000, seed=1, model=_model(0), accumulation=3, micro_batch=2, recompute="all"),
    Case(number=3001, seed=1, model=_model(0), tp=2, shard_weights=True, accumulation=2),
    Case(number=3002, seed=1, model=_model(1), dp=2, zero=3, accumulation=2, resume=1),
    Case(number=3003, seed=1, model=_model(2), pp=2, accumulation=3, schedule="zb-h1"),
    Case(number=3004, seed=1, model=_model(0), cp=2, accumulation=2, recompute=EACH),
    Case(number=3005, seed=1, model=_model(3), cp=2, order="mirrored", seq=16, recompute="none"),
    Case(number=3006, seed=1, model=_model(1), tp=2, cp=2, seq=16, random_costs=True),
    Case(number=3007, seed=1, model=_model(4), pp=2, dp=2, zero=2, accumulation=2,
         schedule="zbv", micro_batch=2, recompute=EACH),
    Case(number=3008, seed=1, model=_model(5), tp=4, shard_weights=True, random_costs=True),
    Case(number=3009, seed=1, model=_model(5), dp=2, tp=2, zero=1, random_costs=True, resume=2),
    Case(number=3010, seed=1, model=_model(2), tp=2, shard_weights=True, random_costs=True),
    Case(number=3011, seed=1, model=_model(3), pp=2, tp=2, accumulation=2, recompute="all"),
    Case(number=3012, seed=1, model=_model(4), tp=2, dp=2, shard_weights=True, dtype="f32"),
    Case(number=3013, seed=1, model=_model(0), dp=2, dtype="bf16", precision="master", zero=2),
    Case(number=3014, seed=1, model=_model(0), rep=2, dp=2, zero=2, optimizer="muon", resume=1),
    Case(number=3015, seed=1, model=_model(0), pp=2, schedule="interleaved", chunks=2,
         accumulation=2, recompute=EACH),
]  # fmt: skip
_SHORT = (3001, 3003, 3005, 3009)
COMPILED = [replace(case, compiled=True) for case in CASES[:5]]


@pytest.mark.parametrize(
    "case", mostly_long(CASES, *(case for case in CASES if case.number in _SHORT)), ids=str
)
def test_equals_the_plain_model_with_the_same_draws(case: Case, court: Court) -> None:
    court.try_case(case)


@pytest.mark.long
@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_compiled_equals_the_plain_model_with_the_same_draws(case: Case, court: Court) -> None:
    court.try_case(case)


def test_every_place_of_dropout_is_drawn() -> None:
    drawn = {PLACES[case.model.variant] for case in CASES}
    assert drawn == set(PLACES)


# In emitted text and in the runtime: pattern and what takes its place.
PLANTS = {
    "elements counted from the shard's first": (
        3001, "stage_00.py", r"2: \(TP_RANK \* \d+, ", "2: (0, ",
    ),
    "rows counted from the micro-batch's first": (
        3001, "runtime/engine/inputs.py", r"row_keys\(key, places\)",
        "row_keys(key, places - places[0])",
    ),
    "each layer draws as the first": (3001, "stage_00.py", r"first_draw=\d+", "first_draw=0"),
    "backward draws anew": (
        3001, "stage_00.py", r"(d_\w+ = kernels\.dropout\(\w+, )draws",
        r"\g<1>draws ^ torch.tensor([8, 0, 0])",
    ),
    "every step draws the same": (
        3002, "runtime/engine/inputs.py", r"draws/\{seed\}/\{step\}", "draws/{seed}/0",
    ),
    "a mirrored shard taken for a whole one": (
        3005, "stage_00.py", r", CP_RANK, 2, mirrored=True\)", ", CP_RANK, 2)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", mostly_long(PLANTS, *list(PLANTS)[:3]))
def test_a_planted_error_is_caught(name: str, court: Court) -> None:
    number, file, pattern, replacement = PLANTS[name]

    def plant(folder: Path) -> None:
        path = folder / file
        text, found = re.subn(pattern, replacement, path.read_text())
        assert found, f"{pattern} is nowhere in {file}: plant the error anew"
        path.write_text(text)

    case = next(case for case in CASES if case.number == number)
    with pytest.raises(LawError):
        court.try_case(case, edit=plant)
