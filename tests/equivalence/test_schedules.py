"""The law for every schedule: several stages a rank, backward in two, tied weights, ZeRO and tp."""

import pytest
from equivalence.cases import Case, ModelDraw
from equivalence.law import Court

UNTIED = ModelDraw("llama", stock=False, variant=0, seed=0)
TIED = ModelDraw("llama", stock=False, variant=3, seed=0)  # embedding and head are one
BIASED = ModelDraw("gpt2", stock=False, variant=0, seed=0)  # layer norms, biases, positions
CASES = [
    Case(number=700, seed=0, model=TIED, pp=2, accumulation=4, schedule="interleaved", zero=1),
    Case(number=701, seed=0, model=UNTIED, pp=2, dp=2, accumulation=2, schedule="interleaved",
         chunks=3, zero=3),
    Case(number=702, seed=0, model=TIED, pp=2, dp=2, accumulation=3, schedule="zb-h1", zero=2),
    Case(number=703, seed=0, model=BIASED, pp=3, accumulation=7, schedule="zb-h1",
         recompute="all"),
    Case(number=704, seed=0, model=TIED, pp=2, dp=2, accumulation=4, schedule="zbv", zero=2),
    Case(number=705, seed=0, model=TIED, pp=2, dp=1, accumulation=5, schedule="zbv"),
    Case(number=706, seed=0, model=UNTIED, pp=2, tp=2, accumulation=3, schedule="zbv",
         shard_weights=True, recompute="none"),
    Case(number=707, seed=0, model=BIASED, pp=3, accumulation=1, schedule="zbv", dtype="f32"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_plain_model(case: Case, court: Court) -> None:
    court.try_case(case)
