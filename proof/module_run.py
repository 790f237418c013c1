"""Run the module itself: as the user wrote it, in train() mode, under autograd."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from meshwright.ir.capture.forwards import Returned, returned_by
from meshwright.ir.capture.initialisers import default_dtype
from meshwright.ir.capture.ways import Recorder
from meshwright.ir.capture.widening import CONSTANT_MAKERS
from meshwright.ir.errors import MeshwrightError, ProofError
from meshwright.ir.traced import Ways

from .outcome import Batch, Outcome
from .state import attributes, generators

_CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)


class Widened(TorchFunctionMode):
    """Casts to any float become casts to float64, and what hangs on the plan's dtype stays: the
    default epsilon of torch's RMSNorm, and the digits of constants that a forward makes."""

    def __init__(self, plan_dtype: torch.dtype) -> None:
        super().__init__()
        self.plan_dtype = plan_dtype
        self.forward_default = torch.promote_types(plan_dtype, torch.float32)

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func in CONSTANT_MAKERS and self.plan_dtype != torch.float64:
            return self._constant(func, args, kwargs or {})
        if func is Tensor.__setitem__ and isinstance(args[-1], float):
            args = (*args[:-1], torch.tensor(args[-1], dtype=self.plan_dtype).item())
        func = Tensor.double if func in _CASTS else func
        if func is F.rms_norm:
            epsilon = torch.finfo(self.forward_default).eps
            args, kwargs = (), _rms_norm_arguments(epsilon, *args, **(kwargs or {}))
        wide = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **wide)

    def _constant(self, func: Callable, args: tuple, kwargs: dict) -> Tensor:
        """Numbers in float64 with the digits that the capture has of them."""
        made: Tensor = func(*args, **kwargs)
        data = kwargs.get("data", args[-1] if args else None)
        if not made.is_floating_point() or hasattr(data, "dtype"):
            return made.double() if made.is_floating_point() else made
        said = func is Tensor.new_tensor or kwargs.get("dtype") is not None
        digits = self.plan_dtype if said else self.forward_default
        digits = digits if made.dtype == torch.float64 else made.dtype
        return made.to(digits).double()


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
    narrow = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if narrow else value


@contextmanager
def _limits_of(plan_dtype: torch.dtype) -> Iterator[None]:
    """Let torch.finfo of float64 give the limits of the plan's dtype, as the capture has them."""
    kept = torch.finfo

    def limits(dtype: torch.dtype | None = None) -> torch.finfo:
        asked = torch.get_default_dtype() if dtype is None else dtype
        return kept(plan_dtype if asked == torch.float64 else asked)

    torch.finfo = limits  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        torch.finfo = kept  # type: ignore[misc]


class _InFloat32(TorchFunctionMode):
    """Computes in float32 what torch has for no narrower type, such as the QR of orthogonal_."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except NotImplementedError:
            narrow = [a.dtype for a in args if isinstance(a, Tensor) and a.is_floating_point()]
            if not narrow or torch.float32 in narrow:
                raise
            wide = tree_map_only(Tensor, Tensor.float, args)
            return tree_map_only(Tensor, lambda t: t.to(narrow[0]), func(*wide, **(kwargs or {})))


def built(build: Callable[[], nn.Module], dtype: torch.dtype, seed: int = 0) -> nn.Module:
    """Build a module with `dtype` as torch's default, in train() mode; seeded."""
    with default_dtype(dtype), torch.random.fork_rng(devices=[]), _InFloat32():
        torch.manual_seed(seed)
        return build().train()


def drawn_buffers(build: Callable[[], nn.Module]) -> list[str]:
    """Return the names of the buffers that are not the same each time that a module is built."""
    first, second = (dict(built(build, torch.float32, n).named_buffers()) for n in range(2))
    return [name for name, buffer in first.items() if not _same(buffer, second.get(name))]


class NoNumberError(ProofError):
    """The module's own loss is infinite or no number."""


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's weights by name, in float64."""
    return {name: param.detach().double() for name, param in module.named_parameters()}


def moved_by(weights: dict[str, Tensor], deviation: float, seed: int) -> dict[str, Tensor]:
    """Return weights moved at random: zeros and ones hide the gradients of what they multiply."""
    generator = torch.Generator().manual_seed(seed + 1)
    return {
        name: w + deviation * torch.randn(w.shape, generator=generator, dtype=torch.float64)
        for name, w in weights.items()
    }


def run_module(
    module: nn.Module,
    weights: dict[str, Tensor],
    batch: Batch,
    name: str,
    plan_dtype: torch.dtype | None = None,
) -> Outcome:
    """Return the loss and gradients of a batch.

    plan_dtype: of Widened, for a module in float64; None for one in the plan's dtype.

    Raises ProofError where a second call gives another loss, where a call changes a buffer, where
    the loss is no number, and where the module does not run.
    """
    for key, param in module.named_parameters():
        param.data.copy_(weights[key])
        param.grad = None
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    if plan_dtype is None:
        with _failing(name, batch):
            return _called_twice(module, batch, name, plan_dtype, before)
    with _failing(name, batch), default_dtype(torch.float64), _limits_of(plan_dtype):
        return _called_twice(module, batch, name, plan_dtype, before)


@contextmanager
def _failing(name: str, batch: Batch) -> Iterator[None]:
    """Turn what a module raises on a batch into a ProofError."""
    try:
        yield
    except MeshwrightError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, AssertionError) as e:
        said = (str(e).splitlines() or [type(e).__name__])[0]
        if "data-dependent expression" in said or "FakeTensor" in said:
            raise ProofError(
                f"model {name}: its forward keeps a value between calls, as functools.lru_cache "
                "does, and has kept one of a trace; calculate it anew, or make it a buffer"
            ) from e
        raise ProofError(
            f"model {name}: the module itself fails in PyTorch on {len(batch.tokens)} rows of "
            f"{batch.tokens.shape[1]} tokens: {said}"
        ) from e


def ways_of(
    build: Callable[[], nn.Module],
    batch: Batch,
    name: str,
    dtype: torch.dtype,
    trains: bool = True,
) -> Ways:
    """Return the ways that the first call of a module in `dtype` takes. trains: else evaluates.

    Raises ProofError where the module does not run.
    """
    module, recorder = built(build, dtype), Recorder()
    wide = dtype if dtype == torch.float64 else None
    module = module if wide is None else module.double()
    if not trains:
        module.eval()
    with _failing(name, batch), default_dtype(dtype), batch.drawing(), recorder.recording():
        _loss(module, batch, wide)
    return recorder.ways


def loss_in_f64(
    module: nn.Module, batch: Batch, plan_dtype: torch.dtype, mode: TorchFunctionMode
) -> Tensor:
    """Return the loss of a module in float64 that has its weights, its calls seen by a mode."""
    with default_dtype(torch.float64), _limits_of(plan_dtype), mode, batch.drawing():
        return _loss(module, batch, plan_dtype)


def _called_twice(
    module: nn.Module,
    batch: Batch,
    name: str,
    plan_dtype: torch.dtype | None,
    before: dict[str, Tensor],
) -> Outcome:
    before_draws = generators()
    with batch.drawing():  # also in backward, which computes again what is checkpointed
        loss = _loss(module, batch, plan_dtype)
        if loss.requires_grad:
            loss.backward()
    if drawn := [key for key, now in generators().items() if before_draws[key] != now]:
        raise ProofError(
            f"model {name}: its forward draws from {drawn[0]}, and a program is the same at each "
            "step; take the draw out"
        )
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
    kept = attributes(module)
    # With gradients, as some ops compute in another way without, and modules may ask.
    other = batch.permuted()
    with other.drawing():
        _loss(module, other, plan_dtype)
    with batch.drawing():
        again = _loss(module, batch, plan_dtype).detach()
    moved = sorted(key for key, value in attributes(module).items() if kept.get(key) != value)
    if moved:
        raise ProofError(
            f"model {name}: each call of its forward changes attribute {moved[0]}; a program keeps "
            "no such state: take it out, or make it a buffer that forward only reads"
        )
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


def _loss(module: nn.Module, batch: Batch, plan_dtype: torch.dtype | None) -> Tensor:
    # What torch.compile wraps runs as it is written, as the capture has it.
    eager = torch.compiler.set_stance("force_eager")
    with eager, Widened(plan_dtype) if plan_dtype else nullcontext():
        floats = next((p.dtype for p in module.parameters()), torch.float64)
        others = {r: x.to(floats) if r == "images" else x for r, x in batch.others.items()}
        found = returned_by(module, batch.tokens, **others)
        return batch.loss(found.logits) + _of_routers(found)


def _of_routers(found: Returned) -> Tensor | float:
    """The loss of a module's routers: its own number, or what their load makes of all rows."""
    if found.load is None:
        return 0.0 if found.router_loss is None else found.router_loss
    choices, probabilities = found.load.sum(0)
    return (choices.detach() * probabilities).sum() / choices.detach().sum() ** 2
