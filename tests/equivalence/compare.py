"""How near a program's outcome must be to the plain model's, and the message when it is not.

In float64 and float32 the two are compared with each other. In bf16 every order of summing gives
other digits, so both are compared with the plain model in float64 from the same weights: the
program may be off by NARROW_FACTOR times what the plain model in bf16 is off by, and by as many
units of rounding. Over 72 cases drawn the worst were 0.2 of that for losses, 1.5 for norms, 2.3 for
gradients and 1.4 for parameters; an all-reduce that is missing makes more than 10.

Some drawn modules enlarge rounding: values squared four times over, then an attention that is
saturated, whose gradients of 1e-12 AdamW turns into steps. What is past a limit in float64 may be
off by SHAKEN_FACTOR times what the plain model is off by when the result of each op moves by a unit
of rounding (of the two found so far, 0.1 and 34 times), and by MOST_SHAKEN at most.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from equivalence.cases import RATES, Case
from equivalence.oracle import Outcome
from torch import Tensor


class LawError(AssertionError):
    """A program that does not compute what the plain model computes."""


@dataclass(frozen=True)
class Tolerance:
    """loss: relative. grad: see _grad_error. param: see _param_error."""

    loss: float
    grad: float
    param: float


TOLERANCES = {
    "f64": Tolerance(loss=1e-12, grad=1e-9, param=1e-7),
    # Half a learning rate.
    "f32": Tolerance(loss=1e-6, grad=1e-5, param=min(RATES) / 2),
}


UNIT = 2.0**-8  # the largest relative error of rounding to bf16
NARROW_FACTOR = 4.0
SHAKEN_FACTOR, MOST_SHAKEN = 100.0, 1e-5


@dataclass(frozen=True)
class Reading:
    """One error measured: kind is loss, norm, grad or param."""

    kind: str
    name: str
    error: float
    limit: float


def check(
    case: Case,
    found: Outcome,
    expected: Outcome,
    wide: Outcome | None = None,
    shaken: Callable[[], Outcome] | None = None,
) -> list[Reading]:
    """All readings. Raises LawError, worst first, when one is past its limit.

    expected: the plain model in the case's dtype. wide: for bf16, the plain model in float64.
    shaken: gives, for float64, the plain model with each op's result moved by a unit of
    rounding.
    """
    assert len(found.losses) == len(expected.losses), "steps are missing"
    assert found.grads.keys() == expected.grads.keys()
    assert found.params.keys() == expected.params.keys()
    for name in expected.params.keys() - expected.grads.keys():  # frozen: not one bit moves
        if not torch.equal(found.params[name], expected.params[name]):
            raise LawError(f"{case}: {name} is frozen and changed\n{case!r}")
    if wide is not None:
        readings = list(_narrow_readings(case, found, expected, wide))
    else:
        readings = list(_readings(case.dtype, found, expected))
    # Written so that a NaN counts as past the limit.
    past = [r for r in readings if not r.error <= r.limit]
    if past and shaken is not None:
        past = _past_rounding(past, _readings(case.dtype, shaken(), expected))
    if past:
        past.sort(key=lambda r: -r.error / r.limit)
        lines = [f"  {r.kind} {r.name}: off by {r.error:.3g}, limit {r.limit:g}" for r in past[:12]]
        head = f"{case} (MESHWRIGHT_SEED={case.seed}): {len(past)} of {len(readings)} differ"
        raise LawError("\n".join([head, *lines, repr(case)]))
    return readings


def _past_rounding(past: list[Reading], shaken: Iterator[Reading]) -> list[Reading]:
    """Those of the readings that the module's own rounding does not explain."""
    own = {(r.kind, r.name): r.error for r in shaken}
    return [r for r in past if not r.error <= min(SHAKEN_FACTOR * own[r.kind, r.name], MOST_SHAKEN)]


def _readings(dtype: str, found: Outcome, expected: Outcome) -> Iterator[Reading]:
    limit = TOLERANCES[dtype]
    yield from _scalars("loss", dtype, found.losses, expected.losses, limit.loss)
    yield from _scalars("norm", dtype, found.norms, expected.norms, limit.grad)
    for name, grad in expected.grads.items():
        error = _grad_error(dtype, found.grads[name], grad, expected.norms[0])
        yield Reading("grad", name, error, limit.grad)
    for name, param in expected.params.items():
        yield Reading("param", name, _param_error(dtype, found.params[name], param), limit.param)


def _scalars(
    kind: str, dtype: str, found: list[float], expected: list[float], limit: float
) -> Iterator[Reading]:
    """Relative errors by step, absolute where 0 is expected. float32: of the first step, where both
    start from the same weights.

    AdamW's first updates are near the gradient's sign times the rate, so where a gradient is
    rounding they carry rounding into the weights at the size of a step.
    """
    steps = len(expected) if dtype == "f64" else 1
    for step, (a, b) in enumerate(zip(found[:steps], expected[:steps], strict=True)):
        yield Reading(kind, f"of step {step}", abs(a - b) / (abs(b) or 1.0), limit)


def _grad_error(dtype: str, found: Tensor, expected: Tensor, whole: float) -> float:
    """Norm of the difference over the norm; `whole` is the norm of all gradients.

    A gradient that is 0 but for rounding (a bias of keys without rotation; queries and keys of one
    position) has no relative error. In float64 one below 1e-12 is compared absolutely; in float32
    none is taken for smaller than a hundredth of the whole, a limit of 1e-7 of it, where the unit
    of rounding is 6e-8.
    """
    norm = expected.double().norm().item()
    error = (found.double() - expected.double()).norm().item()
    if dtype == "f32":
        return error / max(norm, whole / 100)
    return error if norm < 1e-12 else error / norm


def _param_error(dtype: str, found: Tensor, expected: Tensor) -> float:
    """float64: relative to the norm. float32: the largest difference of an element.

    A parameter whose gradient is 0 but for rounding (a bias of keys without rotation) starts at 0
    and stays far below one step; its error is taken relative to a step.
    """
    difference = (found - expected).abs()
    if dtype == "f32":
        return difference.max().item()
    return difference.norm().item() / max(expected.norm().item(), min(RATES))


def _narrow_readings(
    case: Case, found: Outcome, plain: Outcome, wide: Outcome
) -> Iterator[Reading]:
    """Losses and norms are of the first step, where all start from the same weights.

    What is 0 but for rounding (a bias of keys) has a gradient made of terms of the size of others,
    so a gradient's unit is at least one of a hundredth of all gradients. Where a gradient is
    rounding, its sign is, and most optimizers make a whole step of it: of a single parameter one
    element may have gone the other way in all steps, of all parameters together none more than the
    plain model's did.
    """
    outcomes = (found, plain, wide)
    for word, kind in (("loss", "losses"), ("norm", "norms")):
        firsts = [torch.tensor(getattr(o, kind)[0]) for o in outcomes]
        yield _narrow(word, "of step 0", *firsts, least=0.0)
    for name in wide.grads:
        least = UNIT * wide.norms[0] / 100
        yield _narrow("grad", name, *(o.grads[name] for o in outcomes), least=least)
        flipped = 2 * sum(case.rates)
        yield _narrow("param", name, *(o.params[name] for o in outcomes), least=flipped)
    for kind in ("grads", "params"):
        whole = [torch.cat([getattr(o, kind)[n].flatten() for n in wide.grads]) for o in outcomes]
        yield _narrow(kind[:-1], "of all", *whole, least=0.0)


def _narrow(
    kind: str, name: str, found: Tensor, plain: Tensor, wide: Tensor, *, least: float
) -> Reading:
    """The error in units of the plain model's own and a rounding of the norm; least: of a unit."""
    own = (plain.double() - wide).norm().item()
    unit = own + max(UNIT * wide.double().norm().item(), least)
    return Reading(kind, name, (found.double() - wide).norm().item() / unit, NARROW_FACTOR)
