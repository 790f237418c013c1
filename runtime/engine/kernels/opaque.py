"""Functions that torch.compile leaves as they stand."""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.library import Library, infer_schema, register_fake

HOME = "meshwright_runtime"  # namespace of the ops


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
    definition, or the end of the one that is called, would leave the others a freed one.

    Registered below autograd, as programs run without: torch.library.custom_op takes 60 us a call
    of the host's time.
    """
    held = sys.modules.setdefault(HOME, ModuleType(HOME)).__dict__
    library = held.setdefault("library", Library(HOME, "FRAGMENT"))
    name = function.__name__.strip("_")
    if name not in held:
        library.define(name + infer_schema(function, mutates_args=tuple(mutates)))
        library.impl(name, function, "CompositeExplicitAutograd")
        register_fake(f"{HOME}::{name}", fake, lib=library)
        held[name] = getattr(getattr(torch.ops, HOME), name).default
    return held[name]
