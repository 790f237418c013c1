"""Refuse what an export does not show: hooks, custom functions, and counts of writes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoint_module
from torch.utils.checkpoint import CheckpointFunction

from ..errors import CaptureError
from .lines import of_model, short_line

# Of torch.nn.utils.parametrizations, and of torch.nn.utils.
_SPECTRAL = ("_SpectralNorm", "SpectralNorm")
_OF_MODULES = frozenset(vars(nn.Module()))


def check_hooks(module: nn.Module, name: str) -> None:
    """Raise CaptureError for hooks, which change values or gradients and leave no trace."""
    for path, param in module.named_parameters():
        path = path.removeprefix("module.")
        if param._backward_hooks or getattr(param, "_post_accumulate_grad_hooks", None):
            raise CaptureError(
                f"model {name}: parameter {path} has a hook on its gradient, which a program does "
                "not run; write what it does into forward, or remove it"
            )
    for path, part in module.named_modules():
        path = path.removeprefix("module").removeprefix(".")
        if part._backward_hooks or part._backward_pre_hooks:
            raise CaptureError(
                f"model {name}: module {path or 'itself'} has a backward hook, which a program "
                "does not run; write what it does into forward, or remove it"
            )
        rules = part, *part._forward_pre_hooks.values()
        if any(type(rule).__name__ in _SPECTRAL for rule in rules):
            raise CaptureError(
                f"model {name}: module {path} belongs to a spectral_norm, which keeps vectors that "
                "each forward updates; a program keeps no such state: train without it, or divide "
                "by torch.linalg.matrix_norm(w, 2) in forward"
            )


def check_compiled(module: nn.Module, name: str) -> None:
    """Raise CaptureError for a part that torch.jit compiled, whose code an export does not see."""
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise CaptureError(
                f"model {name}: {path.removeprefix('module').removeprefix('.') or 'it'} is a "
                "module of torch.jit; build it without torch.jit.script or trace"
            )


def check_unregistered(module: nn.Module, name: str) -> None:
    """Raise CaptureError for a trainable tensor that a list or dictionary of a module holds."""
    known = {id(param) for param in module.parameters()}
    for path, part in module.named_modules():
        for attribute, held in vars(part).items():
            if attribute in _OF_MODULES or not isinstance(held, list | tuple | dict):
                continue
            tensors = held.values() if isinstance(held, dict) else held
            for tensor in tensors:
                if isinstance(tensor, Tensor) and tensor.requires_grad and id(tensor) not in known:
                    place = f"{path}.{attribute}".removeprefix("module").removeprefix(".")
                    raise CaptureError(
                        f"model {name}: {place} holds a trainable tensor of shape "
                        f"{list(tensor.shape)} that is no parameter of the module; hold it in "
                        "nn.ParameterList or nn.ParameterDict, or read it as an attribute"
                    )


@contextmanager
def no_custom_functions(name: str) -> Any:
    """Refuse autograd.Function, of which an export keeps the forward alone.

    Functions of torch itself, such as those of torch.library's custom ops, are let through. What is
    checkpointed is computed plainly: what backward computes again is the plan's decision.
    """
    kept = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is CheckpointFunction:
            function, _, *given = args
            return function(*given)
        if cls.__module__.startswith("torch."):
            return kept.__get__(None, cls)(*args, **kwargs)
        raise CaptureError(
            f"model {name}: torch.autograd.Function {cls.__qualname__} has a backward that capture "
            "cannot see; make it a torch.library.custom_op with register_autograd, or write its "
            "forward in ops that torch differentiates"
        )

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = kept  # type: ignore[method-assign]


@contextmanager
def no_checkpoints() -> Iterator[None]:
    """Compute plainly what torch.utils.checkpoint wraps by hooks on saved tensors.

    `_checkpoint_without_reentrant_generator` is private: `checkpoint` takes one step of it before
    the function and one after.
    """
    kept = checkpoint_module._checkpoint_without_reentrant_generator

    def plainly(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    checkpoint_module._checkpoint_without_reentrant_generator = plainly
    try:
        yield
    finally:
        checkpoint_module._checkpoint_without_reentrant_generator = kept


@contextmanager
def no_value_hooks(name: str) -> Any:
    """Refuse hooks on the gradients of values, which an export does not keep."""
    kept = torch.Tensor.register_hook

    def register_hook(self: Tensor, hook: Any) -> Any:
        raise CaptureError(
            f"model {name}: its forward sets a hook on the gradient of a value of {self.ndim} "
            "dimensions, whose effect capture cannot see; write it into forward, as in "
            "x * a + (x * (1 - a)).detach(), or make it a torch.library.custom_op with "
            "register_autograd"
        )

    torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.register_hook = kept  # type: ignore[method-assign]


@contextmanager
def no_versions(name: str) -> Iterator[None]:
    """Refuse to read how often a tensor was written, which every step of an optimizer changes."""

    def version(self: Tensor) -> int:
        caller = sys._getframe(1)
        if of_model(caller.f_code.co_filename):
            line = short_line(caller.f_code.co_filename, caller.f_lineno)
            raise CaptureError(
                f"model {name}: its forward reads _version at {line}, how often a tensor was "
                "written; each step of an optimizer changes that, and a program does not follow "
                "it: leave it out"
            )
        return torch._C.TensorBase._version.__get__(self)  # type: ignore[attr-defined]

    torch.Tensor._version = property(version)  # type: ignore[assignment]
    try:
        yield
    finally:
        del torch.Tensor._version


@contextmanager
def no_writes_behind() -> Iterator[None]:
    """Let a forward's `x.data` be `x.detach()`, of which an export shows reads and writes."""
    kept = torch.Tensor.data

    def data(self: Tensor) -> Tensor:
        caller = sys._getframe(1)
        if of_model(caller.f_code.co_filename):
            return self.detach()
        return kept.__get__(self)  # type: ignore[attr-defined]

    torch.Tensor.data = property(data, kept.__set__)  # type: ignore[assignment, attr-defined]
    try:
        yield
    finally:
        torch.Tensor.data = kept


@contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """Give a module's parts their attributes back after an export, such as tables that a forward
    caches: another export has other symbols."""
    before = [(part, dict(vars(part)), dict(part._buffers)) for part in module.modules()]
    try:
        yield
    finally:
        for part, attributes, buffers in before:
            vars(part).clear()
            vars(part).update(attributes)
            part._buffers.clear()
            part._buffers.update(buffers)
