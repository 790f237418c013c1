"""Pointwise ops on values drawn at random, as steps of a program (see `contents`)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .contents import LIMIT_BYTES, Program, Step

# Ops that IEEE rounds alike on one element and on many.
EXACT = {"mul", "div", "add", "sub", "rsub", "neg", "abs", "clamp", "clamp_min", "clamp_max",
         "reciprocal", "sqrt"}  # fmt: skip
_UNARY = {"neg", "exp", "log", "log1p", "log2", "log10", "expm1", "abs", "sqrt", "rsqrt",
          "reciprocal", "tanh", "sigmoid", "sin", "cos", "sign", "erf", "erfinv", "floor", "ceil",
          "round", "square", "relu"}  # fmt: skip
_BINARY = {"add", "sub", "mul", "div", "rsub"}

Operand = float | Tensor


@dataclass(frozen=True)
class _Made:
    """A step before it is known where it applies."""

    kind: str
    numbers: tuple[float, ...] = ()
    operand: Tensor | None = None


def steps_of(
    name: str, operands: list[Any], at: int, kwargs: dict[str, Any]
) -> tuple[Step, ...] | None:
    """The steps of an op on the random operand at place `at`, None for an op that has none."""
    others = [o for place, o in enumerate(operands) if place != at]
    if name in _UNARY and not others and not kwargs:
        return (Step(name),)
    if name == "softplus" and not others and not kwargs:
        return (Step("softplus"),)
    if name in ("clamp", "clamp_min", "clamp_max"):
        return _clamp(name, others, kwargs)
    if name == "pow" and at == 0 and _numbers(others) and not kwargs:
        return (Step("pow", (float(others[0]),)),)
    alpha = kwargs.get("alpha", others[1] if name == "rsub" and len(others) > 1 else 1)
    if name in _BINARY and set(kwargs) <= {"alpha"} and others and others[0] is not None:
        return _binary(name, others[0], at, float(alpha))
    return None


def _numbers(values: list[Any]) -> bool:
    return all(isinstance(v, int | float) for v in values)


def _clamp(name: str, others: list[Any], kwargs: dict[str, Any]) -> tuple[Step, ...] | None:
    low, high = float("-inf"), float("inf")
    if name == "clamp":
        given = [*others, None, None]
        below, above = kwargs.get("min", given[0]), kwargs.get("max", given[1])
    else:
        bound = others[0] if others else next(iter(kwargs.values()))
        below, above = (bound, None) if name == "clamp_min" else (None, bound)
    if not _numbers([v for v in (below, above) if v is not None]):
        return None
    low = low if below is None else float(below)
    high = high if above is None else float(above)
    return (Step("clamp", (low, high)),)


def _binary(name: str, other: Operand, at: int, alpha: float) -> tuple[Step, ...] | None:
    """random (op) other, or other (op) random where `at` is 1."""
    if isinstance(other, Tensor) and other.numel() * other.element_size() > LIMIT_BYTES:
        return None
    if name == "rsub":
        return _scaled(-alpha) + _with("add", other) if at == 0 else None
    sign = -1.0 if name == "sub" else 1.0
    if name in ("add", "sub"):
        if at == 0:
            return _with("add", other * (sign * alpha) if sign * alpha != 1 else other)
        return _scaled(sign * alpha) + _with("add", other)
    if name == "div" and at == 1:
        return (Step("reciprocal"), *_with("mul", other))
    return _with(name, other)


def _scaled(factor: float) -> tuple[Step, ...]:
    return () if factor == 1 else (Step("neg"),) if factor == -1 else (Step("mul", (factor,)),)


def _with(kind: str, other: Operand) -> tuple[Step, ...]:
    if isinstance(other, Tensor):
        return (Step(kind, operand=other.detach().clone()),)
    return () if kind in ("mul", "div") and other == 1 else (Step(kind, (float(other),)),)


def join(name: str, first: Program, second: Program, kwargs: dict[str, Any]) -> Program | None:
    """An op on two values of which one is computed from the other, None for any other two."""
    longer, shorter = sorted((first, second), key=lambda p: -len(p.steps))
    count = len(shorter.steps)
    if kwargs or name not in ("add", "sub", "mul", "div") or longer.steps[:count] != shorter.steps:
        return None
    if not (longer.even and first.plain == second.plain):
        return None
    if name in ("sub", "div") and longer is second and longer is not first:
        turned = Step("neg" if name == "sub" else "reciprocal")
        return longer.then(turned, Step("add" if name == "sub" else "mul", earlier=count))
    return longer.then(Step(name, earlier=count))
