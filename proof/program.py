"""Run an emitted program of one rank in this process, on given weights."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor

from meshwright import runtime
from meshwright.codegen.program import layout_source
from meshwright.codegen.schedule import schedule_source
from meshwright.codegen.stage import stage_source
from meshwright.ir.dtypes import TORCH_NAMES
from meshwright.ir.errors import ProofError
from meshwright.ir.plan import Plan
from meshwright.ir.sizes import evaluate
from meshwright.runtime import layout as layout_door
from meshwright.runtime.engine import collectives, kernels, mesh
from meshwright.runtime.engine.buckets import FlatBucket
from meshwright.runtime.engine.executor import Executor
from meshwright.runtime.engine.inputs import batch_of
from meshwright.runtime.engine.layout import Layout
from meshwright.runtime.engine.stage import Stage
from meshwright.runtime.training.program import decode

from .outcome import Batch, Outcome

_STAGE = "stage_00"
STAGE_FILE = f"<{_STAGE}.py>"
# What emitted files import, by the names that they say.
_DOOR = {
    "runtime": runtime,
    "runtime.layout": layout_door,
    "runtime.collectives": collectives,
    "runtime.kernels": kernels,
    "runtime.mesh": mesh,
}


class _Recorder:
    """Stands where the optimizer does and updates nothing."""

    def squares(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64)

    def step(self, loss: float, norm: float, lr: float) -> None:
        pass


def run_program(plan: Plan, weights: dict[str, Tensor], batch: Batch) -> Outcome:
    """Emit a plan of one rank, run a step of it, and return its loss and gradients.

    weights: by name of the parameter, cast to the plan's dtype. batch: the whole global batch.
    Raises ProofError where it does not run.
    """
    try:
        return _run(plan, weights, batch)
    except Exception as error:
        where = " ".join(getattr(error, "__notes__", []))
        raise ProofError(
            f"model {plan.model}: the captured program fails on {plan.micro_batch} rows of "
            f"{plan.seq} tokens, where the module runs: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''} {where}".rstrip()
        ) from error


def _run(plan: Plan, weights: dict[str, Tensor], batch: Batch) -> Outcome:
    device = torch.device("cpu")
    layout: Layout = _imported("layout", layout_source(plan)).LAYOUT
    mesh.start(layout.mesh, device)
    module = _imported(_STAGE, stage_source(plan, 0))
    schedules = _imported("schedule", schedule_source(plan)).SCHEDULES
    constants = _constants(plan)
    made = [FlatBucket(bucket, layout, 0, device, constants) for bucket in layout.buckets]
    buckets = {bucket.bucket.name: _filled(bucket, weights) for bucket in made}
    stage = Stage(module, buckets, constants, None)
    executor = Executor({0: stage}, schedules[0], layout, buckets, _Recorder())
    given = {"tokens": batch.tokens, "labels": batch.labels, "rows": batch.rows}
    given |= batch.others
    split = {name: x.split(plan.micro_batch) for name, x in given.items()}
    inputs: list[Mapping[str, Tensor]] = [
        batch_of(layout.inputs, **dict(zip(split, part, strict=True)))
        for part in zip(*split.values(), strict=True)
    ]
    loss, _ = executor.train_step(inputs, batch.label_count, 0.0)
    trained = (b.grads() for b in buckets.values() if b.trainable)
    return Outcome(loss, {n: g.clone() for views in trained for n, g in views.items()})


def _imported(name: str, text: str) -> ModuleType:
    """Execute an emitted file as a module, what it imports of its runtime being this package's."""
    module = ModuleType(f"program_{name}")
    with runtime_here():
        exec(compile(text, f"<{name}.py>", "exec"), module.__dict__)
    return module


@contextmanager
def runtime_here() -> Iterator[None]:
    """Let emitted files import this package's runtime as theirs."""
    before = {name: sys.modules.get(name) for name in _DOOR}
    sys.modules.update(_DOOR)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _filled(bucket: FlatBucket, weights: dict[str, Tensor]) -> FlatBucket:
    for name, view in bucket.params().items():
        view.copy_(weights[name])
    return bucket


def _constants(plan: Plan) -> dict[str, Tensor]:
    return {
        digest: decode(TORCH_NAMES[dtype], [evaluate(size, {}) for size in shape], data)
        for digest, dtype, shape, data in plan.constants
    }
