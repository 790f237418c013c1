"""Say where a program and its module part: the first value that differs, its op and its line.

The module shows its values by the lines of its forwards, the program by the variables of its own
forward functions. A value is compared where both have one of a line and of one shape.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from meshwright.codegen.local import identifier
from meshwright.ir.capture.lines import short_line
from meshwright.ir.graph import Op
from meshwright.ir.phases import forward_ops
from meshwright.ir.plan import Plan

from .module_run import loss_in_f64
from .outcome import Batch
from .program import STAGE_FILE, run_program

_FORWARD = "_forward"


@dataclass(frozen=True)
class _Shown:
    """A value that a line of a module makes. line: as ops have it, "" outside of any forward."""

    line: str
    value: Tensor


class _Recorder(TorchFunctionMode):
    """Keeps what each function of torch gives, and writes, with the line that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[_Shown] = []

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        found = args[0] if func is Tensor.__setitem__ else result
        for value in found if isinstance(found, tuple | list) else (found,):
            if isinstance(value, Tensor) and value.is_floating_point():
                self.shown.append(_Shown(_line(sys._getframe(1)), value.detach().clone()))
        return result


def _line(frame: FrameType | None) -> str:
    """The line of the innermost forward of the model, as capture finds it."""
    while frame is not None:
        if frame.f_code.co_name == "forward":
            if line := short_line(frame.f_code.co_filename, frame.f_lineno):
                return line
        frame = frame.f_back
    return ""


def _shown(module: nn.Module, batch: Batch, plan_dtype: torch.dtype) -> list[_Shown]:
    recorder = _Recorder()
    with torch.no_grad():
        loss_in_f64(module, batch, plan_dtype, recorder)
    return recorder.shown


def first_difference(
    plan: Plan,
    weights: dict[str, Tensor],
    module: nn.Module,
    batch: Batch,
    plan_dtype: torch.dtype,
    tolerance: float,
) -> str:
    """Return a sentence that names the first value of a forward that no value of its line equals.

    plan: of one micro-batch, all values kept. module: in float64, with the same weights.
    plan_dtype: as run_module takes it. tolerance: of the largest element. Returns "" where all
    agree.
    """
    by_line: dict[str, list[Tensor]] = defaultdict(list)
    for shown in _shown(module, batch, plan_dtype):
        by_line[shown.line].append(shown.value)
    for op, value in _made(plan, weights, batch):
        off = [
            float((own - value).abs().max())
            for own in by_line[op.source]
            if own.shape == value.shape and own.numel()
        ]
        if off and not min(off) <= tolerance * max(1.0, float(value.abs().max())):
            return (
                f" The first value that differs is {op.output.name}, of {op.target} at "
                f"{op.source}: by {min(off):.3g}."
            )
    return ""


def _made(plan: Plan, weights: dict[str, Tensor], batch: Batch) -> Iterator[tuple[Op, Tensor]]:
    """The last value of each line that a program's forward functions make, with its op."""
    graphs = {piece.name: piece.graph for piece in plan.pieces}
    with _watched() as calls:
        run_program(plan, weights, batch)
    for name, variables in calls:
        ops = [op for op in forward_ops(graphs[name]) if op.source]
        behind = [op.source for op in ops[1:]] + [""]
        for op in (op for op, source in zip(ops, behind, strict=True) if op.source != source):
            value = variables.get(identifier(op.output.name))
            if isinstance(value, Tensor) and value.is_floating_point():
                yield op, value


@contextmanager
def _watched() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Collect the piece and the variables of each forward function of a stage that returns."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "return" and code.co_filename == STAGE_FILE and code.co_name.endswith(_FORWARD):
            calls.append((code.co_name.removesuffix(_FORWARD), dict(frame.f_locals)))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def first_mixed_rows(
    module: nn.Module, batch: Batch, rows: int, plan_dtype: torch.dtype, tolerance: float
) -> str:
    """Return a sentence that names the line whose values for `rows` rows depend on more of them.

    Returns "" where none is found.
    """
    whole = _shown(module, batch, plan_dtype)
    own_rows = batch.only(slice(rows))
    part = _shown(module, own_rows, plan_dtype)
    for both, own in zip(whole, part, strict=False):
        if both.line != own.line or both.value.dim() != own.value.dim():
            return ""
        kept = both.value[: len(own.value)] if own.value.dim() else both.value
        if kept.shape != own.value.shape or not own.value.numel():
            continue
        off = float((kept - own.value).abs().max())
        if both.line and not off <= tolerance * max(1.0, float(own.value.abs().max())):
            return (
                f" {both.line} gives {rows} of {len(batch.tokens)} rows values that differ by "
                f"{off:.3g} from those that they have alone."
            )
    return ""
