"""The law of the house: whatever the plan, the program computes what the plain model computes."""

import os
from dataclasses import replace

import pytest
from equivalence.cases import EACH, Case, ModelDraw, chosen_seed, draw_cases, draw_narrow_cases
from equivalence.law import Court
from sampling import mostly_long

from meshwright.ir.ops.registry import definition

CASES = draw_cases(chosen_seed(), 40, max_world=4, repeats=3)
_DRAWN = 27  # of them, that `make test` runs
NARROW = draw_narrow_cases(chosen_seed(), 3, max_world=4)


def _chosen(cases: list[Case], numbers: tuple[int, ...]) -> list:
    return mostly_long(cases, *(case for case in cases if case.number in numbers))


# Replicas of sharded storage at every level, tied, with each optimizer that exchanges more.
_SMALL = ModelDraw("llama", stock=False, variant=0, seed=chosen_seed())
_TIED = ModelDraw("gemma2", stock=False, variant=0, seed=chosen_seed())
REPLICAS = [
    Case(number=850, seed=0, model=_TIED, rep=2, dp=2, zero=1, accumulation=2, optimizer="muon"),
    Case(number=851, seed=0, model=_TIED, rep=2, dp=2, zero=2, accumulation=3, resume=1),
    Case(number=852, seed=0, model=_TIED, pp=2, rep=2, dp=2, zero=3, accumulation=2,
         optimizer="adafactor", outer="dp"),
    Case(number=853, seed=0, model=_TIED, rep=2, dp=2, tp=2, zero=2, shard_weights=True),
    # The sequence cut over ranks, alone and with every other axis; seq 8 and 12 divide by them.
    Case(number=860, seed=0, model=_TIED, cp=2, accumulation=2, shard_weights=True),
    Case(number=861, seed=0, model=_SMALL, cp=2, tp=2, random_costs=True, zero=1),
    Case(number=862, seed=0, model=_SMALL, cp=2, dp=2, zero=3, accumulation=2, resume=1),
    Case(number=863, seed=0, model=_TIED, pp=2, cp=2, zero=2, accumulation=2, schedule="zb-h1"),
    Case(number=864, seed=0, model=_SMALL, cp=4, seq=12, random_costs=True, recompute="none"),
    Case(number=865, seed=0, model=_SMALL, pp=2, rep=2, dp=1, cp=2, zero=2, optimizer="muon"),
    Case(number=866, seed=0, model=_SMALL, cp=2, dtype="f32", seq=16, accumulation=2),
    # In mirrored shards, of which chunks are down to one token.
    Case(number=1000, seed=0, model=_TIED, cp=2, tp=2, shard_weights=True, order="mirrored",
         random_costs=True),
    Case(number=1001, seed=0, model=_SMALL, pp=2, cp=2, zero=3, recompute="all", accumulation=2,
         order="mirrored", outer="dp", resume=1),
    Case(number=1002, seed=0, model=_SMALL, cp=4, seq=8, order="mirrored", recompute=EACH),
    Case(number=1006, seed=0, model=_TIED, pp=2, cp=2, zero=1, accumulation=4, schedule="zbv",
         order="mirrored"),
    Case(number=1003, seed=0, model=_TIED, cp=4, dtype="f32", seq=16, order="mirrored"),
    # The same exchanged for heads, and beside exchanges over tensor.
    Case(number=1005, seed=0, model=_SMALL, cp=2, seq=16, order="mirrored", random_costs=True,
         price=0.0),
    Case(number=1011, seed=0, model=_SMALL, cp=2, tp=2, seq=16, order="mirrored",
         random_costs=True, price=0.0),
]  # fmt: skip

# Windows of 3 and 4 keys in a sequence cut over ranks: smaller than a shard, as long as it, a whole
# shard before it, and longer, where all keys are gathered.
_WINDOW = ModelDraw("mistral", stock=False, variant=0, seed=0)  # 4 keys
_MIXED = ModelDraw("gemma3", stock=False, variant=1, seed=0)  # 3 keys, and all in other layers
WINDOWS = [
    Case(number=1020, seed=0, model=_WINDOW, cp=2, seq=8, accumulation=2),
    Case(number=1021, seed=0, model=_MIXED, cp=2, tp=2, seq=16, shard_weights=True, zero=1),
    Case(number=1022, seed=0, model=_WINDOW, pp=2, cp=2, seq=16, zero=3, recompute="all",
         accumulation=2, schedule="zb-h1", resume=1),
    Case(number=1023, seed=0, model=_WINDOW, cp=4, seq=12, recompute=EACH),
    Case(number=1024, seed=0, model=_WINDOW, cp=4, seq=16, dtype="f32"),
    Case(number=1025, seed=0, model=_WINDOW, cp=2, dp=2, seq=4, zero=2),
    Case(number=1026, seed=0, model=_WINDOW, cp=2, seq=8, order="mirrored"),
]  # fmt: skip
_GATHERED = (1025, 1026)

# More tensor ranks than KV heads, 4 over 2: one KV head a rank, shared by two.
_GROUPED = ModelDraw("llama", stock=False, variant=4, seed=0)
_GROUPED_TIED = ModelDraw("llama", stock=False, variant=34, seed=0)
SPLIT = [
    Case(number=870, seed=0, model=_GROUPED, tp=4, shard_weights=True, accumulation=2),
    Case(number=871, seed=0, model=_GROUPED, tp=4, random_costs=True, resume=1, optimizer="muon"),
    Case(number=872, seed=0, model=_GROUPED_TIED, tp=4, shard_weights=True, price=0.0,
         optimizer="adafactor", accumulation=2),
    Case(number=873, seed=0, model=_GROUPED, tp=4, random_costs=True, freeze=("*norm*",),
         dtype="f32", recompute=EACH),
]  # fmt: skip


# Those of the chosen cases that `make test` runs.
_KEPT = (850, 861, 863, 870, 1000, 1002, 1005)


@pytest.mark.parametrize("case", mostly_long(CASES + NARROW, *CASES[:_DRAWN], *NARROW), ids=str)
def test_equals_the_plain_model(case: Case, court: Court) -> None:
    court.try_case(case)


@pytest.mark.parametrize("case", _chosen(REPLICAS + SPLIT, _KEPT), ids=str)
def test_equals_the_plain_model_on_every_axis(case: Case, court: Court) -> None:
    court.try_case(case)


@pytest.mark.parametrize("case", _chosen(WINDOWS, (1020,)), ids=str)
def test_a_window_over_shards_equals_the_plain_model(case: Case, court: Court) -> None:
    court.try_case(case)
    ops = [op for piece in court.plan(case).pieces for op in piece.graph.ops]
    found = {op.attr("kind") for op in ops if definition(op).collective}
    halos = {"halo", "reduce_halo"}
    assert found & halos == (set() if case.number in _GATHERED else halos)


# Parameters that are not trained: a prefix, a whole stage, some of every layer, tied ones.
FROZEN = [
    Case(number=900, seed=0, model=_SMALL, freeze=("*embed*",), accumulation=2),
    Case(number=901, seed=0, model=_SMALL, pp=2, accumulation=3,
         freeze=("*embed*", "layers.0.*", "layers.1.*")),
    Case(number=902, seed=0, model=_SMALL, dp=2, zero=3, accumulation=2,
         freeze=("*embed*", "layers.0.*")),
    Case(number=903, seed=0, model=_SMALL, dp=2, zero=2, freeze=("*norm*",), resume=1),
    Case(number=904, seed=0, model=_TIED, dp=2, zero=1, freeze=("*embed*",), accumulation=2),
    Case(number=905, seed=0, model=_SMALL, tp=2, shard_weights=True, random_costs=True,
         freeze=("*embed*", "layers.0.*", "*norm*")),
    Case(number=906, seed=0, model=_SMALL, cp=2, dp=2, zero=3, freeze=("layers.1.*",)),
    Case(number=907, seed=0, model=_TIED, pp=2, schedule="zb-h1", accumulation=4,
         freeze=("*embed*", "layers.0.*"), zero=2, dp=2),
    Case(number=908, seed=0, model=_SMALL, pp=2, schedule="zbv", accumulation=4,
         freeze=("*embed*", "layers.0.*"), recompute=EACH),
    Case(number=909, seed=0, model=_SMALL, pp=2, schedule="interleaved", chunks=2, accumulation=4,
         freeze=("*embed*", "layers.0.*"), optimizer="muon", zero=1, dp=2, resume=1),
    Case(number=910, seed=0, model=_SMALL, dp=2, dtype="bf16", precision="master", zero=3,
         freeze=("layers.0.*",), optimizer="schedule-free", resume=1),
    Case(number=911, seed=0, model=_SMALL, dp=2, tp=2, freeze=("*head*", "*norm*"), zero=2,
         optimizer="adafactor", resume=2),
]  # fmt: skip


# Of more micro-batches than bf16 sums: gradients are summed in float32, masters or not.
SUMMED = [
    Case(number=920, seed=0, model=_SMALL, dp=2, dtype="bf16", accumulation=10, zero=2),
    Case(number=921, seed=0, model=_SMALL, dp=2, dtype="bf16", accumulation=9, zero=3, resume=1,
         settings=(("rounding", "stochastic"),), optimizer="muon"),
    Case(number=922, seed=0, model=_SMALL, pp=2, schedule="zb-h1", dtype="bf16", accumulation=9,
         optimizer="adafactor"),
]  # fmt: skip


@pytest.mark.parametrize("case", SUMMED, ids=str)
def test_equals_the_plain_model_with_long_sums(case: Case, court: Court) -> None:
    court.try_case(case)


@pytest.mark.parametrize("case", _chosen(FROZEN, (901, 909)), ids=str)
def test_equals_the_plain_model_with_frozen_parameters(case: Case, court: Court) -> None:
    court.try_case(case)


def test_a_stage_with_nothing_to_train_gets_no_gradient(court: Court) -> None:
    plan = court.plan(next(case for case in FROZEN if case.number == 901))
    kinds = [{action.kind for action in actions} for actions in plan.schedule]
    assert {i.name for i in plan.instances if i.stage == 0} >= {"embed", "layers.0.ffn"}
    assert kinds == [{"F", "SEND_F", "B", "STEP"}, {"RECV_F", "F", "B", "STEP"}]


# One small model and one local shape, so that what is compiled for one case serves the others.
COMPILED = [
    replace(case, number=800 + number, compiled=True)
    for number, case in enumerate(
        (
            Case(number=0, seed=_SMALL.seed, model=_SMALL, accumulation=2),
            Case(number=0, seed=_SMALL.seed, model=_SMALL, dp=2, zero=3, accumulation=2),
            Case(number=0, seed=_SMALL.seed, model=_SMALL, pp=2, zero=1, accumulation=2),
            Case(number=0, seed=_SMALL.seed, model=_SMALL, pp=2, schedule="zbv", accumulation=2),
            Case(number=0, seed=_SMALL.seed, model=_SMALL, tp=2, shard_weights=True),
            Case(number=0, seed=_SMALL.seed, model=_SMALL, dp=2, zero=2, dtype="f32"),
            Case(number=0, seed=_SMALL.seed, model=_SMALL, accumulation=2, recompute=EACH),
            Case(number=0, seed=0, model=_WINDOW, cp=2),
            Case(number=0, seed=_SMALL.seed, model=_SMALL, cp=2, order="mirrored"),
        )
    )
]


@pytest.mark.parametrize("case", _chosen(COMPILED, ()), ids=str)
def test_compiled_equals_the_plain_model(case: Case, court: Court) -> None:
    court.try_case(case)


# MESHWRIGHT_CASES: how many.
_COUNT = int(os.environ.get("MESHWRIGHT_CASES", "300"))
LONG = draw_cases(chosen_seed(), _COUNT, max_world=8, repeats=4)
LONG += draw_narrow_cases(chosen_seed(), _COUNT // 6, max_world=8)
# Products of four and five axes on 8 ranks.
LONG += [
    Case(number=880, seed=0, model=_GROUPED, cp=2, tp=4, shard_weights=True, zero=3),
    Case(number=881, seed=0, model=_GROUPED, pp=2, tp=4, shard_weights=True, schedule="zb-h1",
         accumulation=4),
    Case(number=882, seed=0, model=_SMALL, pp=2, dp=2, cp=2, zero=3, accumulation=2, resume=1),
    Case(number=883, seed=0, model=_SMALL, dp=2, cp=2, tp=2, shard_weights=True, zero=2),
    Case(number=884, seed=0, model=_TIED, rep=2, dp=2, cp=2, zero=1, optimizer="muon"),
    Case(number=885, seed=0, model=_TIED, pp=2, dp=1, cp=2, tp=2, zero=2, freeze=("*embed*",)),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=str)
def test_equals_the_plain_model_at_length(case: Case, court: Court) -> None:
    court.try_case(case)
