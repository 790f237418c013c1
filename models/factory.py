"""Models from a user's own Python: `py:module:factory`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType

import torch
from torch import nn

from .errors import ModelError, nearest, said_of
from .own_files import reading
from .source import ModelSource


def factory_source(spec: str) -> ModelSource:
    """The source of a module that a function without arguments returns.

    The module is looked for on sys.path, then in the current folder. Its vocabulary is the
    `vocab_size` of the module or of its `config`, else the rows of its first nn.Embedding; its
    longest sequence `max_seq` or `max_position_embeddings` of either, if there is one.

    Raises ModelError where the import, the name or the returned value is wrong.
    """
    module_name, name = _names(spec)
    with reading() as opened:
        build = _checked(spec, _factory(spec, module_name, name))
        sample = _sample(build)
    return ModelSource(
        spec, _vocab_size(spec, sample), _max_seq(sample), build, opened=frozenset(opened)
    )


def _names(spec: str) -> tuple[str, str]:
    parts = spec.split(":")
    if len(parts) != 3 or not all(parts):
        raise ModelError(f"bad model {spec!r}; write py:module:factory")
    return parts[1], parts[2]


def _factory(spec: str, module_name: str, name: str) -> Callable[[], object]:
    module = _import(spec, module_name)
    factory = getattr(module, name, None)
    if factory is None:
        names = [key for key, value in vars(module).items() if callable(value)]
        raise ModelError(f"{spec}: {module_name} has no {name!r}; {nearest(name, names)}")
    if not callable(factory):
        raise ModelError(f"{spec}: {name} is a {type(factory).__name__}, not a function")
    return factory


def _import(spec: str, module_name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        hint = ""
        if module_name.endswith(".py"):
            hint = f"; write py:{module_name.removesuffix('.py').replace('/', '.')}:factory"
        raise ModelError(f"{spec}: cannot import {module_name}: {said_of(error)}{hint}") from error


def _checked(spec: str, factory: Callable[[], object]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        try:
            module = factory()
        except (Exception, SystemExit) as error:
            raise ModelError(f"{spec}: the factory failed: {said_of(error)}") from error
        if not isinstance(module, nn.Module):
            raise ModelError(
                f"{spec}: returned a {type(module).__name__}, not an nn.Module; return one"
            )
        return module

    return build


def _sample(build: Callable[[], nn.Module]) -> nn.Module:
    try:
        with torch.device("meta"):
            return build()
    except ModelError:
        # A factory that reads values cannot run on meta; one that is broken fails here again.
        return build()


def _vocab_size(spec: str, module: nn.Module) -> int:
    stated = _stated(module, "vocab_size")
    if stated is not None:
        return stated
    for child in module.modules():
        if isinstance(child, nn.Embedding):
            return child.num_embeddings
    raise ModelError(f"{spec}: no vocabulary found; give the module an int attribute vocab_size")


def _max_seq(module: nn.Module) -> int | None:
    return _stated(module, "max_seq") or _stated(module, "max_position_embeddings")


def _stated(module: nn.Module, name: str) -> int | None:
    for holder in (module, getattr(module, "config", None)):
        value = getattr(holder, name, None)
        if isinstance(value, int):
            return value
    return None
