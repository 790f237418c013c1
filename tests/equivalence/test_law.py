"""The law of the house: whatever the plan, the program computes what the plain model computes."""

import os

import pytest
from equivalence.cases import Case, chosen_seed, draw_cases
from equivalence.law import Court

CASES = draw_cases(chosen_seed(), 44, max_world=4)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_plain_model(case: Case, court: Court) -> None:
    court.try_case(case)


LONG = draw_cases(
    chosen_seed() + 1, int(os.environ.get("MESHWRIGHT_CASES", "300")), max_world=8, repeats=4
)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=str)
def test_equals_the_plain_model_at_length(case: Case, court: Court) -> None:
    court.try_case(case)
