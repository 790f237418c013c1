"""The law on GPUs, one a rank and over NCCL; the plain model runs on the CPU.

    pytest tests/equivalence/test_gpu.py -m gpu

takes the meshes that this machine's GPUs allow. MESHWRIGHT_CASES: how many of the drawn cases.
"""

import os
from collections.abc import Iterator

import pytest
import torch
from equivalence.cases import SCHEDULES, Case, ModelDraw, chosen_seed, draw_cases, draw_narrow_cases
from equivalence.law import Court
from equivalence.pool import Pool

from meshwright.runtime.launch.device_settings import ALWAYS, OF_PIPELINES
from meshwright.runtime.optimizers.options import NAMES

pytestmark = pytest.mark.gpu

GPUS = torch.cuda.device_count()
_COUNT = int(os.environ.get("MESHWRIGHT_CASES", "24"))
_MODEL = ModelDraw("llama", stock=False, variant=0, seed=chosen_seed())


def _drawn() -> list[Case]:
    world = max(GPUS, 2)
    return [
        *draw_cases(chosen_seed(), _COUNT, max_world=world),
        *draw_narrow_cases(chosen_seed(), _COUNT // 4, max_world=world),
    ]


def _pipelines() -> list[Case]:
    return [
        Case(number=850 + number, seed=_MODEL.seed, model=_MODEL, pp=2, accumulation=4,
             schedule=name, chunks=chunks)
        for number, (name, chunks) in enumerate(SCHEDULES)
    ]  # fmt: skip


def _optimizers() -> list[Case]:
    return [
        Case(number=870 + number, seed=_MODEL.seed, model=_MODEL, dp=2, zero=1, accumulation=2,
             optimizer=name, steps=10)
        for number, name in enumerate(NAMES)
    ]  # fmt: skip


def _compiled() -> list[Case]:
    return [
        Case(number=890, seed=_MODEL.seed, model=_MODEL, pp=2, accumulation=4, schedule="zbv",
             compiled=True),
        Case(number=891, seed=_MODEL.seed, model=_MODEL, dp=2, zero=3, accumulation=2,
             dtype="f32", compiled=True),
    ]  # fmt: skip


def _contexts() -> list[Case]:
    """The sequence in mirrored shards, and windows that take keys of the neighbour."""
    window = ModelDraw("mistral", stock=False, variant=0, seed=0)
    return [
        Case(number=895 + number, seed=0, model=model, cp=2, seq=16, dtype=dtype, order=order)
        for number, (model, dtype, order) in enumerate(
            [(_MODEL, "bf16", "mirrored"), (_MODEL, "f64", "mirrored"), (window, "f64", None)]
        )
    ]


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    # As the programs' own entry has it.
    for name, value in (ALWAYS | OF_PIPELINES).items():
        os.environ.setdefault(name, value)
    court = Court(tmp_path_factory.mktemp("gpus"), Pool(), cuda=True)
    yield court
    court.pool.stop()


@pytest.mark.parametrize(
    "case", [*_pipelines(), *_optimizers(), *_compiled(), *_contexts(), *_drawn()], ids=str
)
def test_equals_the_plain_model(case: Case, gpus: Court) -> None:
    if case.world > GPUS:
        pytest.skip(f"{case.world} ranks, {GPUS} GPUs")
    gpus.try_case(case)
