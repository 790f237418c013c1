"""The text of initial values: `normal(0.0, 0.02) mul(0.5)[0:4, 0:8] row(9, 0.0) of(other.name)`.

Steps run in order, each on all elements or on a box. A fill replaces values, other steps change
them. Operands are numbers, `@k` for the values after the first k steps, and `#digest` for a stored
tensor. `of` takes the draws of another parameter.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_STEP = re.compile(r"(\w+)\(([^()]*)\)(?:\[([^\]]*)\])?")
Box = tuple[tuple[int, int], ...]


def _trunc_normal(x: Tensor, numbers: tuple[float, ...], generator: torch.Generator) -> Tensor:
    mean, std, *limits = numbers
    low, high = limits or (mean - 2 * std, mean + 2 * std)
    return torch.nn.init.trunc_normal_(x, mean, std, low, high, generator=generator)


Fill = Callable[[Tensor, tuple[float, ...], torch.Generator], Tensor]
FILLS: dict[str, Fill] = {
    "normal": lambda x, n, g: x.normal_(*n, generator=g),
    "uniform": lambda x, n, g: x.uniform_(*n, generator=g),
    "trunc_normal": _trunc_normal,
    "exponential": lambda x, n, g: x.exponential_(*n, generator=g),
    "log_normal": lambda x, n, g: x.log_normal_(*n, generator=g),
    "cauchy": lambda x, n, g: x.cauchy_(*n, generator=g),
    "bernoulli": lambda x, n, g: x.bernoulli_(*n, generator=g),
}
_UNARY: dict[str, Any] = {
    name: getattr(torch, name)
    for name in (
        "neg", "exp", "log", "log1p", "log2", "log10", "expm1", "abs", "sqrt", "rsqrt",
        "reciprocal", "tanh", "sigmoid", "sin", "cos", "sign", "erf", "erfinv", "floor", "ceil",
        "round", "square", "relu",
    )
} | {"softplus": torch.nn.functional.softplus}  # fmt: skip
_BINARY: dict[str, Any] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
_FIXED = {"constant", "stored", "orthogonal", "clamp", "pow"}
KINDS = {*FILLS, *_UNARY, *_BINARY, *_FIXED}


@dataclass(frozen=True)
class Step:
    """One step. box: (first, last) per dim, None for all elements. earlier: number of steps."""

    kind: str
    numbers: tuple[float, ...]
    box: Box | None = None
    digest: str = ""
    earlier: int | None = None

    def inside(self, shape: tuple[int, ...], start: int, stop: int) -> tuple[slice, ...] | None:
        """The part of rows start:stop that the step changes, None where it changes nothing."""
        if self.box is None:
            return (slice(None),)
        (first, last), *others = self.box or ((0, 1),)
        first, last = max(first - start, 0), min(last, stop) - start
        return None if first >= last else (slice(first, last), *(slice(a, b) for a, b in others))

    def cut(self, values: Tensor, shape: tuple[int, ...], start: int, stop: int) -> Tensor:
        """Stored values of the step in rows start:stop; those that broadcast stay whole."""
        low, high = self.box[0] if self.box else (0, shape[0])
        if values.dim() < len(shape) or values.shape[0] != high - low:
            return values
        return values[max(start - low, 0) : stop - low]


def apply(step: Step, values: Tensor, operand: Tensor | None) -> Tensor:
    """The values after a step. operand: what was drawn or stored, or the values after steps."""
    if step.kind in _UNARY:
        return _UNARY[step.kind](values)
    if step.kind in _BINARY:
        return _BINARY[step.kind](values, step.numbers[0] if operand is None else operand)
    if step.kind == "clamp":
        return values.clamp(*step.numbers)
    if step.kind == "pow":
        return values.pow(step.numbers[0])
    if step.kind == "constant":
        return torch.full_like(values, step.numbers[0])
    assert operand is not None, step
    return operand.expand_as(values)


def parse_recipe(recipe: str) -> tuple[tuple[Step, ...], str]:
    """The steps of a recipe, and the parameter whose draws it takes, "" for its own.

    Raises ValueError for a step that is not known.
    """
    steps, owner = [], ""
    for text in re.split(r" (?=\w+\()", recipe):
        match = _STEP.fullmatch(text)
        if match and match[1] == "of":
            owner = match[2]
        elif match and match[1] == "row":
            steps.append(_row_step(match[2]))
        elif match and match[1] in KINDS:
            steps.append(_step(*match.groups()))
        else:
            raise ValueError(f"parameter initialiser {text!r} is not known; plan the model again")
    return tuple(steps), owner


def _row_step(arguments: str) -> Step:
    row, number = arguments.split(",")
    return Step("constant", (float(number),), ((int(row), int(row) + 1),))


def _step(kind: str, arguments: str, box: str | None) -> Step:
    given = [a.strip() for a in arguments.split(",") if a.strip()]
    numbers = tuple(float(a) for a in given if a[0] not in "@#")
    digest = next((a[1:] for a in given if a[0] == "#"), "")
    earlier = next((int(a[1:]) for a in given if a[0] == "@"), None)
    ranges = [r.split(":") for r in (box or "").split(",") if r.strip()]
    bounds = tuple((int(a), int(b)) for a, b in ranges) if box is not None else None
    return Step(kind, numbers, bounds, digest, earlier)
