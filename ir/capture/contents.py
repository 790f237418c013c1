"""What a storage holds while a module is built: a program of fills and steps, values, or neither.

A program is text that the runtime reads again: `normal(0.0, 0.02) mul(0.5)[0:4, 0:8] row(9, 0.0)`.
Each step applies to all elements or to a box. Its operand is a number, the value after a number of
earlier steps (`add(@1)`), or a stored tensor (`mul(#digest)`).
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

LIMIT_BYTES = 64 << 20  # of values that travel in a plan
MAX_STEPS = 64  # of one program
RANDOM = ("normal", "uniform", "trunc_normal", "exponential", "log_normal", "cauchy", "bernoulli",
          "orthogonal")  # fmt: skip
_draws = itertools.count()


@dataclass(frozen=True)
class View:
    """Elements of a storage, in elements."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.size)


@dataclass(frozen=True)
class Step:
    """A fill or a pointwise step. where: None for all elements. shape: of what it was applied to.

    operand: values set by hand, which broadcast to `shape`. earlier: the operand is the value after
    that many steps. draw: of a random fill its number.
    """

    kind: str
    numbers: tuple[float, ...] = ()
    where: View | None = None
    operand: Tensor | None = field(default=None, compare=False)
    earlier: int | None = None
    draw: int | None = None
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """Steps in order; none where nothing was seen. plain: drawn in order of the storage."""

    steps: tuple[Step, ...] = ()
    plain: bool = True

    @property
    def random(self) -> bool:
        return any(step.kind in RANDOM for step in self.steps)

    @property
    def even(self) -> bool:
        """Tell whether all elements are equal in distribution, whatever their order."""
        return all(s.where is None and s.operand is None for s in self.steps)

    @property
    def constant(self) -> float | None:
        """The number of a program that fills all with it."""
        whole = len(self.steps) == 1 and self.steps[0].where is None
        return self.steps[0].numbers[0] if whole and self.steps[0].kind == "constant" else None

    def then(self, *steps: Step) -> "Program":
        return replace(self, steps=(*self.steps, *steps))


@dataclass(frozen=True)
class Exact:
    """Values of a storage that has no memory of its own. NaN: never set."""

    storage: torch.UntypedStorage


@dataclass(frozen=True)
class Unknown:
    """Values that no recipe gives again. part: what of a QR decomposition it is."""

    why: str
    part: str = ""


Content = Program | Exact | Unknown


def fill(kind: str, numbers: tuple[float, ...]) -> Step:
    """A fill; a random one is a draw of its own."""
    return Step(kind, numbers, draw=next(_draws) if kind in RANDOM else None)


def view_of(tensor: Tensor) -> View:
    return View(int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())


def covers_storage(tensor: Tensor) -> bool:
    """Tell whether a tensor has each element of its storage once."""
    return (
        tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        and 0 not in (t for n, t in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    )


def on_storage(storage: torch.UntypedStorage, tensor: Tensor) -> Tensor:
    """The elements of a real storage that a tensor names in its own."""
    empty = torch.empty(0, dtype=tensor.dtype)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def materialised(program: Program, like: Tensor) -> Exact:
    """The storage that a program of constants fills; NaN where it fills nothing."""
    values = torch.empty(like.untyped_storage().nbytes() // like.element_size(), dtype=like.dtype)
    if like.is_floating_point():
        values.fill_(math.nan)
    for step in program.steps:
        part = values
        if step.where is not None:
            part = values.as_strided(step.where.size, step.where.stride, step.where.offset)
        if step.operand is None:
            part.fill_(step.numbers[0])
        else:
            part.copy_(step.operand)
    return Exact(values.untyped_storage())


def box_of(view: View, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
    """First and last index per dim of a part of a contiguous tensor, None for what is no box.

    Runs of the view are matched with dims from the outermost: one that has a dim's stride covers
    elements of this dim, or all of it and some of the dim before.
    """
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    first, rest = [], view.offset
    for stride, n in zip(strides, shape, strict=True):
        first.append(min(rest // stride, n - 1))
        rest -= first[-1] * stride
    count = [1] * len(shape)
    runs = [(n, t) for n, t in zip(view.size, view.stride, strict=True) if n > 1]
    if rest or [t for _, t in runs] != sorted((t for _, t in runs), reverse=True):
        return None
    for n, t in runs:
        while n > 1:
            dim = next((d for d, s in enumerate(strides) if s == t and shape[d] > 1), None)
            if dim is None or count[dim] > 1:
                return None
            taken = min(n, shape[dim] - first[dim])
            if n % taken or (n > taken and first[dim]):
                return None
            count[dim], n, t = taken, n // taken, t * taken
    return tuple((a, a + n) for a, n in zip(first, count, strict=True))


def format_program(
    program: Program, shape: tuple[int, ...], store: Callable[[Tensor], str]
) -> str | None:
    """The text of a program, None where a step is on no box of the shape.

    store: keeps a tensor and returns its digest.
    """
    texts = [_format_step(step, shape, store) for step in program.steps]
    return " ".join(t for t in texts if t) if None not in texts else None


def _format_step(step: Step, shape: tuple[int, ...], store: Callable[[Tensor], str]) -> str | None:
    box = None
    if step.where is not None:
        box = box_of(step.where, shape)
        if box is None:
            return None
        row = box[0][1] - box[0][0] == 1 and all(
            (0, n) == b for n, b in zip(shape[1:], box[1:], strict=True)
        )
        if row and step.kind == "constant":
            return f"row({box[0][0]}, {step.numbers[0]!r})"
    arguments = [repr(float(n)) for n in step.numbers]
    if step.earlier is not None:
        arguments.append(f"@{step.earlier}")
    if step.operand is not None:
        sizes = tuple(b - a for a, b in box) if box else shape
        arguments.append(f"#{store(_operand(step, sizes))}")
    where = f"[{', '.join(f'{a}:{b}' for a, b in box)}]" if box else ""
    return f"{step.kind}({', '.join(arguments)}){where}"


def _operand(step: Step, sizes: tuple[int, ...]) -> Tensor:
    """The operand as it broadcasts to the sizes of a box."""
    assert step.operand is not None
    if step.shape == sizes:
        return step.operand.reshape((1,) * (len(sizes) - step.operand.dim()) + step.operand.shape)
    return step.operand.expand(step.shape).reshape(sizes)


def covered(program: Program, shape: tuple[int, ...]) -> bool:
    """Tell whether the fills of a program set each element."""
    fills = [s for s in program.steps if s.kind in (*RANDOM, "constant", "stored")]
    if any(s.where is None for s in fills):
        return True
    seen = torch.zeros(math.prod(shape), dtype=torch.bool)
    for step in fills:
        assert step.where is not None
        seen.as_strided(step.where.size, step.where.stride, step.where.offset).fill_(True)
    return bool(seen.all())
