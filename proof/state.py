"""What outlives a call of a module: attributes, objects that they hold, classes, globals, draws."""

import itertools
import random
import sys
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import FunctionType, GeneratorType, MethodType, ModuleType

import torch
from torch import Tensor, nn

_DEEP = 4  # levels of objects and containers that are looked into
_OF_MODULES = frozenset(vars(nn.Module()))
_PLAIN = (int, float, str, bytes, type(None), torch.dtype, torch.device)
_LISTS = (list, tuple, set, frozenset, deque)
_OPAQUE = (nn.Module, type, ModuleType)


def generators() -> dict[str, str]:
    """Return the states of the generators that draw numbers outside of torch."""
    found = {"random": repr(random.getstate())}
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy.random"] = repr(numpy.random.get_state(legacy=False))
    return found


def attributes(module: nn.Module) -> dict[str, object]:
    """Return what a module keeps beside parameters, buffers and parts, comparably.

    That is what its parts hold, what their classes and forwards hold, and what the files of these
    classes hold in globals.
    """
    found = {}
    kinds: dict[type, None] = {}
    for path, part in module.named_modules():
        kinds[type(part)] = None
        for key, value in vars(part).items():
            if key not in _OF_MODULES:
                found[f"{path}.{key}".lstrip(".")] = _comparable(value, 0)
    for name, value in _of_classes(kinds):
        found[name] = _comparable(value, 0)
    return found


def _of_classes(kinds: dict[type, None]) -> Iterator[tuple[str, object]]:
    """What classes of the user's hold: attributes, what their forwards enclose, globals."""
    own = {c: None for kind in kinds for c in kind.__mro__ if not _of_torch(c)}
    for kind in own:
        for key, value in vars(kind).items():
            if not key.startswith("__") and not hasattr(type(value), "__get__"):
                yield f"{kind.__name__}.{key}", value
            if isinstance(value, FunctionType) and key != "__init__":
                yield f"{kind.__name__}.{key}", value
    for file in dict.fromkeys(file for kind in own for file in _files(kind)):
        for key, value in vars(sys.modules.get(file, ModuleType(file))).items():
            if not key.startswith("__") and isinstance(value, (int, float, dict, *_LISTS)):
                yield f"{file}.{key}", value


def _of_torch(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] == "torch"


def _files(kind: type) -> Iterator[str]:
    """The modules whose globals a class reads: its own, its methods', and of what they enclose."""
    yield kind.__module__
    methods = [value for value in vars(kind).values() if isinstance(value, FunctionType)]
    for function in (*methods, *(held for method in methods for held in _enclosed(method))):
        if isinstance(function, FunctionType):
            yield function.__module__


def _enclosed(function: FunctionType) -> list[object]:
    """What a function encloses; a name that is not bound yet is left out."""
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            found.append(cell.cell_contents)
    return found


def _comparable(value: object, depth: int) -> object:
    """A value in a form that changes with it, containers and objects by what they hold.

    Tensors by how often they were written, and by their sum: one that each call makes anew, such as
    activations kept to be looked at, is the same after a call on the same tokens.
    """
    if isinstance(value, Tensor):
        return "tensor", value._version, _sum(value)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if type(value).__module__ == itertools.__name__:
        return repr(value)  # of a count, where it is
    if type(value).__module__ == "numpy":
        return repr(value)
    return _contents(value, depth) if depth < _DEEP else type(value).__name__


def _sum(value: Tensor) -> str:
    """The sum of a tensor's elements; "" of one that an export left in a cache."""
    real = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
    return repr(value.detach().to(torch.complex128).sum().item()) if real else ""


def _contents(value: object, depth: int) -> object:
    if isinstance(value, dict):
        return tuple((str(k), _comparable(v, depth + 1)) for k, v in value.items())
    if isinstance(value, _LISTS):
        return len(value), *(_comparable(v, depth + 1) for v in value)
    if isinstance(value, bytearray | array):
        return bytes(value)
    if isinstance(value, _OPAQUE):
        return id(value)
    return id(value), *(_comparable(held, depth + 1) for held in _held(value))


def _held(value: object) -> list[object]:
    """What an object that can be called, resumed or read holds."""
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, FunctionType):
        return [_enclosed(value), value.__defaults__, value.__kwdefaults__, vars(value)]
    if isinstance(value, GeneratorType):
        return [dict(value.gi_frame.f_locals) if value.gi_frame else None]
    slots = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
    names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
    return [getattr(value, "__dict__", None), *(getattr(value, name, None) for name in names)]
