"""A loss of the user's own: of logits [B, S, V] and labels [B, S] a scalar.

A plan cuts the rows of a batch into parts and adds up what their losses give, so a loss is taken
that is a mean, or a sum, over the labels that count. Which of them it is, is measured.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import CaptureError
from .forwards import Logits
from .semantic import IGNORED_LABEL, statistics_dtype

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_UNCOUNTED = (3, 0, 5, 1)  # labels that do not count, of each measured row
_SEQ = 6
_NAMED = 64  # numbers of a loss, at most, that are measured as labels
# What is added to the logit of each row's labels: losses near none beside large ones.
_CERTAINTIES = ((-20.0, 20.0, 20.0, 20.0), (20.0, -20.0, 2.0, 2.0))
_NEAR = 1e-4  # of what is measured, relative: a loss may compute in float32


@dataclass(frozen=True)
class OwnLoss:
    """A loss by its name. is_mean: over the labels that count; else it is their sum."""

    name: str
    function: LossFunction
    is_mean: bool

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits, taken to float32 at least; 0-dim."""
        wide = logits.to(statistics_dtype(logits.dtype))
        return self.function(wide, labels).to(wide.dtype)

    def total(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over the labels that count, 0 of none, which has no mean."""
        if not self.is_mean:
            return self.value(logits, labels)
        count = (labels != IGNORED_LABEL).sum()
        return self.value(logits, torch.where(count > 0, labels, torch.zeros_like(labels))) * count

    def __str__(self) -> str:
        return f"{self.name}, a {'mean' if self.is_mean else 'sum'} over the labels that count"


class LossTotal(Logits):
    """A module that returns the total of its own loss; it takes labels last, int64 [B, S]."""

    takes_labels = True

    def __init__(self, module: nn.Module, arguments: tuple[str, ...], loss: OwnLoss) -> None:
        super().__init__(module, arguments)
        self.loss = loss

    def part(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.loss.total(logits, labels)


def measured(name: str, function: LossFunction, vocab_size: int) -> OwnLoss:
    """Return a loss with what it was measured to be, on drawn logits with ignored labels.

    Raises CaptureError for one that gives no scalar, that has parameters, which nothing would
    train, or that is neither a mean nor a sum over the labels that count.
    """
    if isinstance(function, nn.Module) and (held := len(list(function.parameters()))):
        raise CaptureError(
            f"--loss {name} has {held} parameters, which nothing would train; move them into the "
            "model"
        )
    kinds = {True, False}  # whether it is a mean
    for logits, labels in _drawn(function, vocab_size):
        whole, means, sums = _in_parts(name, function, logits, labels)
        kinds -= {is_mean for is_mean, v in ((True, means), (False, sums)) if _differs(v, whole)}
        if not kinds:
            rows = len(_UNCOUNTED)
            raise CaptureError(
                f"--loss {name} of {rows} rows is {whole:.6g}; of its parts, 1 row and {rows - 1}, "
                f"the mean by labels that count (not {IGNORED_LABEL}) is {means[0]:.6g} and the "
                f"sum {sums[0]:.6g}: plans cut a batch into parts, so return either of the two"
                f"{_without_ignored(name, function, logits, labels)}"
            )
    return OwnLoss(name, function, is_mean=True in kinds)


def _differs(values: list[float], whole: float) -> bool:
    return any(abs(value - whole) > _NEAR * abs(whole) for value in values)


def _without_ignored(name: str, function: LossFunction, logits: Tensor, labels: Tensor) -> str:
    """Return what to add of a loss that is a mean or a sum where every label counts; else ""."""
    whole, means, sums = _in_parts(name, function, logits, labels.clamp(min=0))
    found = [kind for kind, v in (("mean", means), ("sum", sums)) if not _differs(v, whole)]
    if not found:
        return ""
    return (
        f"; where no label is {IGNORED_LABEL} it is the {found[0]}, so see what positions of that "
        "label add to it, or count in it"
    )


def _in_parts(
    name: str, function: LossFunction, logits: Tensor, labels: Tensor
) -> tuple[float, list[float], list[float]]:
    """The loss of all rows; of each way to cut them the parts' mean by labels, and their sum."""
    sums, means = [], []
    for cut in (1, 2):
        parts = [(logits[:cut], labels[:cut]), (logits[cut:], labels[cut:])]
        found = [_measure(name, function, *part) for part in parts]
        counts = [int((part != IGNORED_LABEL).sum()) for _, part in parts]
        sums.append(sum(found))
        means.append(sum(v * n for v, n in zip(found, counts, strict=True)) / sum(counts))
    return _measure(name, function, logits, labels), means, sums


def _drawn(function: LossFunction, vocab_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and labels that show how a loss weighs: of every size, with rows that are predicted
    well and others badly, and with labels that it may treat by their ids."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(_UNCOUNTED), _SEQ)
    logits = torch.randn((*shape, vocab_size), generator=generator, dtype=torch.float64)
    labels = torch.randint(0, vocab_size, shape, generator=generator)
    counts = torch.stack([torch.arange(_SEQ) >= uncounted for uncounted in _UNCOUNTED])
    known = torch.where(counts, labels, IGNORED_LABEL)
    for scale in (1.0, 1e-3, 10.0):
        yield logits * scale, known
    for certainty in _CERTAINTIES:
        by_row = torch.tensor(certainty, dtype=torch.float64).view(-1, 1, 1)
        yield logits + by_row * functional.one_hot(labels, vocab_size), known
    special = {0, 1, 2, vocab_size - 1, *numbers_named(function)}
    for token in sorted(t for t in special if 0 <= t < vocab_size)[:_NAMED]:
        often = known.clone()
        often[0, -2] = often[2, -1] = token
        yield logits, often


def numbers_named(function: LossFunction) -> set[int]:
    """Return the whole numbers that a function names: in its code, its defaults, what it closes
    over, the globals that it reads, and the attributes of a module or another object."""
    if isinstance(function, partial):
        own = {n for n in (*function.args, *function.keywords.values()) if isinstance(n, int)}
        return own | numbers_named(function.func)
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, FunctionType):
        called = "forward" if isinstance(function, nn.Module) else "__call__"
        method = getattr(type(function), called)
        held = {n for n in getattr(function, "__dict__", {}).values() if isinstance(n, int)}
        return held | (numbers_named(method) if isinstance(method, FunctionType) else set())
    cells = [cell.cell_contents for cell in plain.__closure__ or ()]
    read = [plain.__globals__.get(name) for name in plain.__code__.co_names]
    given = [*(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).values(), *cells, *read]
    return {n for n in given if isinstance(n, int)} | _numbers_in(plain.__code__)


def _numbers_in(code: CodeType) -> set[int]:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return {n for n in code.co_consts if isinstance(n, int)}.union(*map(_numbers_in, inner))


def _measure(name: str, function: LossFunction, logits: Tensor, labels: Tensor) -> float:
    try:
        found = function(logits, labels)
    except Exception as error:
        said = next(iter(str(error).splitlines()), "").rstrip(".")
        ignored = str(IGNORED_LABEL) in said
        raise CaptureError(
            f"--loss {name} fails on logits {list(logits.shape)} and labels {list(labels.shape)}: "
            f"{type(error).__name__}: {said}"
            + f"; labels that do not count are {IGNORED_LABEL}" * ignored
            + _of_dtypes(function, logits, labels)
        ) from error
    _check_scalar(name, found)
    value = float(found)
    if not abs(value) < float("inf"):
        raise CaptureError(f"--loss {name} is {value} on drawn logits; return what is finite")
    return value


def _of_dtypes(function: LossFunction, logits: Tensor, labels: Tensor) -> str:
    """Return what to add of a loss that fails on float64 alone; else ""."""
    try:
        function(logits.float(), labels)
    except Exception:
        return ""
    return (
        "; these logits are float64, and with float32 ones it works: cast what it holds, as in "
        "table.to(logits)"
    )


def _check_scalar(name: str, found: object) -> None:
    if isinstance(found, Tensor) and found.shape == () and found.is_floating_point():
        return
    what = f"{found.dtype} of shape {list(found.shape)}" if isinstance(found, Tensor) else found
    raise CaptureError(
        f"--loss {name} returns {what}; return a scalar, the mean or the sum over the labels that "
        f"are not {IGNORED_LABEL}"
    )
