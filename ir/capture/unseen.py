"""Refuse what an export does not show: hooks, custom functions, and counts of writes."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoint_module
from torch.utils.checkpoint import CheckpointFunction

from ..errors import CaptureError
from .nodes import short_line

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
        if _of_model(caller.f_code.co_filename):
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
        if _of_model(caller.f_code.co_filename):
            return self.detach()
        return kept.__get__(self)  # type: ignore[attr-defined]

    torch.Tensor.data = property(data, kept.__set__)  # type: ignore[assignment, attr-defined]
    try:
        yield
    finally:
        torch.Tensor.data = kept


class Seen:
    """Holder of what a forward shows, so that under export it assigns no attribute of its module.

    rows: how many it is called on. unread: places of the trainable numbers that it returns beside
    its logits.
    """

    rows: Any = None
    unread: tuple[str, ...] = ()


_OTHER = 13  # stands for other sizes than the number of rows
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__")


@contextmanager
def no_question_of_one_row(name: str, seen: Seen) -> Iterator[None]:
    """Refuse to compare sizes where one row is unlike several.

    torch takes B as 2 or more and answers without a trace.
    """
    kept = {method: getattr(torch.SymInt, method) for method in _COMPARISONS}

    def watched(method: str) -> Any:
        def compare(self: torch.SymInt, *others: Any) -> Any:
            caller = sys._getframe(1)
            path = caller.f_code.co_filename
            if (
                _of_user(path)
                and seen.rows is not None
                and _apart(method, seen.rows, self, *others)
            ):
                line = short_line(path, caller.f_lineno)
                raise CaptureError(
                    f"model {name}: {line} asks for the number of rows, and one row is unlike "
                    "several there; a graph has one way for every number of rows, so leave it out"
                )
            return kept[method](self, *others)

        return compare

    for method in _COMPARISONS:
        setattr(torch.SymInt, method, watched(method))
    try:
        yield
    finally:
        for method in _COMPARISONS:
            setattr(torch.SymInt, method, kept[method])


_READINGS = {
    "__hash__": "as a key",
    "__str__": "as text",
    "__repr__": "as text",
    "__format__": "as text",
}


@contextmanager
def no_sizes_as_keys(name: str) -> Iterator[None]:
    """Refuse to look a size up, or to write it down, in code of the user's: a symbol is no number,
    and finds another value than the number does, or none."""
    kept = {method: getattr(torch.SymInt, method) for method in _READINGS}

    def watched(method: str) -> Any:
        def read(self: torch.SymInt, *given: Any) -> Any:
            caller = sys._getframe(1)
            path = caller.f_code.co_filename
            if _of_user(path) and self.node.expr.free_symbols:
                raise CaptureError(
                    f"model {name}: {short_line(path, caller.f_lineno)} takes a size "
                    f"{_READINGS[method]}, of a dictionary or a cache for instance; a graph has "
                    "one way for all sizes, so calculate with it, or make what is cached each time"
                )
            return kept[method](self, *given)

        return read

    for method in _READINGS:
        setattr(torch.SymInt, method, watched(method))
    try:
        yield
    finally:
        for method in _READINGS:
            setattr(torch.SymInt, method, kept[method])


@lru_cache(maxsize=4096)
def _of_model(path: str) -> bool:
    """Whether a file is none of torch's or of this room."""
    return bool(short_line(path, 0))


@lru_cache(maxsize=4096)
def _of_user(path: str) -> bool:
    """Whether a file is none of torch's, of this room, or of an installed library: what those ask
    of one row, such as whether to expand a value, the proof's run of one row has to show."""
    return _of_model(path) and f"{os.sep}site-packages{os.sep}" not in path


def _apart(method: str, rows: torch.SymInt, *compared: Any) -> bool:
    """Whether a comparison of sizes has another answer for one row than for two and three."""
    given = [sympy.sympify(getattr(getattr(x, "node", x), "expr", x)) for x in compared]
    symbol = rows.node.expr
    if not any(isinstance(x, sympy.Expr) and x.has(symbol) for x in given):
        return False
    one, two, three = (_answer(method, given, symbol, count) for count in (1, 2, 3))
    return two == three != one


def _answer(method: str, given: list[sympy.Expr], rows: sympy.Symbol, count: int) -> bool:
    """What a method of numbers gives for expressions at a number of rows, and some other sizes."""
    known = {symbol: _OTHER for x in given for symbol in x.free_symbols} | {rows: count}
    first, *others = (float(x.subs(known)) for x in given)
    return bool(first) if method == "__bool__" else bool(getattr(first, method)(*others))


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
