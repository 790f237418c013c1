"""Run the module itself: as the user wrote it, in train() mode, under autograd."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from meshwright.ir.capture.export import logits_of
from meshwright.ir.errors import ProofError

from .outcome import IGNORED, Batch, Outcome


class Widened(TorchFunctionMode):
    """Casts to float32 become casts to float64, and defaults that hang on the dtype stay.

    epsilon: what torch's RMSNorm takes in the plan's dtype where it is given none.
    """

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        func = Tensor.double if func is Tensor.float else func
        if func is F.rms_norm:
            args, kwargs = (), _rms_norm_arguments(self.epsilon, *args, **(kwargs or {}))
        wide = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **wide)


def _rms_norm_arguments(
    epsilon: float,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> dict[str, Any]:
    given = {"input": input, "normalized_shape": normalized_shape, "weight": weight}
    return given | {"eps": epsilon if eps is None else eps}


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def built(build: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """Build a module with `dtype` as torch's default, in train() mode; seeded."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build().train()
    finally:
        torch.set_default_dtype(before)


class NoNumberError(ProofError):
    """The module's own loss is infinite or no number."""


def weights_of(module: nn.Module, moved: float) -> dict[str, Tensor]:
    """Return weights by name in float64: the module's own, moved a little from special values.

    Zeros and ones hide the gradients of what they multiply. moved: by how much, as the standard
    deviation.
    """
    generator = torch.Generator().manual_seed(1)
    found = {}
    for name, param in module.named_parameters():
        value = param.detach().double()
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        found[name] = value + moved * noise
    return found


def run_module(
    module: nn.Module, weights: dict[str, Tensor], batch: Batch, name: str, epsilon: float = 0.0
) -> Outcome:
    """Return the loss and gradients of a batch. epsilon: of Widened, for a module in float64.

    Raises ProofError where a second call gives another loss, where a call changes a buffer, where
    the loss is no number, and where the module does not run.
    """
    try:
        return _run_module(module, weights, batch, name, epsilon)
    except (RuntimeError, TypeError, IndexError) as error:
        raise ProofError(
            f"model {name}: the module itself fails in PyTorch on {len(batch.tokens)} rows of "
            f"{batch.tokens.shape[1]} tokens: {str(error).splitlines()[0]}"
        ) from error


def _run_module(
    module: nn.Module, weights: dict[str, Tensor], batch: Batch, name: str, epsilon: float
) -> Outcome:
    for key, param in module.named_parameters():
        param.data.copy_(weights[key])
        param.grad = None
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    loss = _loss(module, batch, epsilon)
    if loss.requires_grad:
        loss.backward()
    changed = [k for k, b in module.named_buffers() if not _same(b, before.get(k))]
    if changed:
        raise ProofError(
            f"model {name}: its forward changes buffer {changed[0]!r}; a program keeps no such "
            "state between steps: make it a value that forward returns, or take it out"
        )
    if not loss.isfinite():
        raise NoNumberError(
            f"model {name}: its own loss in PyTorch is {float(loss.detach())} on drawn tokens and "
            "weights near its initial ones; compute what is finite for all of them"
        )
    with torch.no_grad():
        again = _loss(module, batch, epsilon)
    if not torch.equal(loss.detach(), again):
        raise ProofError(
            f"model {name}: its forward called twice on the same tokens gives losses "
            f"{float(loss.detach())!r} and {float(again)!r}: it draws at random, or keeps state "
            "that the call changes; take either out"
        )
    grads = {key: p.grad for key, p in module.named_parameters() if p.requires_grad}
    return Outcome(float(loss.detach()), grads)


def _same(after: Tensor, before: Tensor | None) -> bool:
    return before is not None and torch.equal(after, before)


def _loss(module: nn.Module, batch: Batch, epsilon: float) -> Tensor:
    double = next(module.parameters()).dtype is torch.float64
    with Widened(epsilon) if double else nullcontext():
        logits = logits_of(module, batch.tokens)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(
        logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / batch.label_count
