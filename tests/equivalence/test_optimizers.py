"""Every optimizer under plans that cut its tensors every way: equal to whole tensors."""

import random

import pytest
import torch
from equivalence.cases import Case, ModelDraw
from equivalence.law import Court

from meshwright.runtime.optimizers.muon import newton_schulz, wide
from meshwright.runtime.optimizers.options import NAMES

# 8 heads and even sizes, so that tp has something to cut; its embedding and head are one or not.
UNTIED = ModelDraw("llama", stock=False, variant=0, seed=0)
TIED = ModelDraw("llama", stock=False, variant=3, seed=0)
FUSED = ModelDraw("gpt2", stock=True, variant=0, seed=0)  # q, k and v are one matrix
STOCK = ModelDraw("qwen3", stock=True, variant=0, seed=0)
GROUPS = ("*.q.weight:lr_scale=0.5,weight_decay=0.3", "*norm*:weight_decay=0.05")
PLANS = (
    {"model": UNTIED, "dp": 2, "tp": 2, "shard_weights": True, "zero": 1},
    {"model": TIED, "pp": 2, "dp": 2, "zero": 3, "groups": GROUPS[:1]},
    {"model": UNTIED, "tp": 2, "shard_weights": True, "groups": GROUPS},
    {"model": TIED, "dp": 3, "zero": 2},
    {"model": STOCK, "dp": 2, "zero": 0, "random_costs": True},
    {"model": TIED, "pp": 2, "tp": 2, "shard_weights": True, "zero": 1},
)


def _cases() -> list[Case]:
    """Two plans of a random order for each optimizer."""
    rng = random.Random(0)
    cases = []
    for name in NAMES:
        for plan in rng.sample(PLANS, 2):
            scale = rng.choice(("adamw", "original"))
            settings = {"nesterov": rng.random() < 0.5, "muon_scale": scale}
            cases.append(
                Case(
                    number=600 + len(cases), seed=0, optimizer=name, steps=10, accumulation=2,
                    settings=tuple(settings.items()), **plan,
                )
            )  # fmt: skip
    return cases


@pytest.mark.parametrize("case", _cases(), ids=str)
def test_ten_steps_equal_the_reference(case: Case, court: Court) -> None:
    court.try_case(case)


def test_muon_gathers_matrices_that_tp_cuts_in_strides(court: Court) -> None:
    case = Case(number=640, seed=0, model=FUSED, tp=2, dp=2, zero=1, random_costs=True,
                optimizer="muon", steps=4)  # fmt: skip
    outers = [
        shard.outer
        for param in court.plan(case).params
        for shards in param.placement.dims
        for shard in shards
    ]
    assert max(map(int, outers)) > 1
    court.try_case(case)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", range(len(PLANS)))
def test_every_plan_with_every_optimizer(name: str, number: int, court: Court) -> None:
    plan = PLANS[number]
    court.try_case(Case(number=650 + number, seed=0, optimizer=name, steps=10, **plan))


@pytest.mark.parametrize("shape", [(24, 16), (16, 24), (8, 8)])
def test_newton_schulz_in_bf16_is_torchs(shape: tuple[int, int]) -> None:
    """One step of torch.optim.Muon, from 0 at rate 1 without decay, is minus the iteration."""
    grad = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    param = torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16))
    param.grad = grad.bfloat16()
    optimizer = torch.optim.Muon([param], lr=1.0, weight_decay=0.0, momentum=0.0)
    optimizer.step()
    scale = max(1.0, shape[0] / shape[1]) ** 0.5
    found = newton_schulz(wide(grad.bfloat16())[None])[0].float() * scale
    found = found if shape[0] <= shape[1] else found.T
    assert torch.allclose(-param.detach().float(), found, atol=2**-7)
    singular = torch.linalg.svdvals(found / scale)
    assert 0.5 < float(singular.min()) and float(singular.max()) < 1.5
