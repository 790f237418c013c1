"""Functions that torch.compile leaves as they stand."""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.library import custom_op

_HOME = "meshwright_runtime"


def opaque(
    function: Callable[..., Any], fake: Callable[..., Any], mutates: Sequence[str] = ()
) -> Callable[..., Any]:
    """Return `function`, which compiled text calls as an op of its own.

    fake: makes outputs of the same shapes, dtypes and strides without computing. mutates: the names
    of the arguments that it writes. Elsewhere the plain function is called, without dispatch.
    """
    op = _defined(function, fake, mutates)

    def call(*arguments: Any) -> Any:
        return op(*arguments) if torch.compiler.is_compiling() else function(*arguments)

    return call


def _defined(
    function: Callable[..., Any], fake: Callable[..., Any], mutates: Sequence[str]
) -> Callable[..., Any]:
    """The op, defined once a process: every emitted program has a copy of this file, and another
    definition, or the end of the one that is called, would leave the others a freed one."""
    held = sys.modules.setdefault(_HOME, ModuleType(_HOME)).__dict__
    name = function.__name__.strip("_")
    if name not in held:
        made = custom_op(f"{_HOME}::{name}", mutates_args=tuple(mutates))(function)
        made.register_fake(fake)
        held[name] = made
    return held[name]
