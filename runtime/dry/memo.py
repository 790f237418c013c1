"""Emitted functions that run once for given shapes: afterwards empty results stand for theirs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .held import Held
from .world import META, Message, Trace

_Form = tuple[torch.Size, tuple[int, ...], Any, torch.dtype]  # shape, stride, offset


@dataclass(frozen=True)
class _Made:
    """A result. home: the argument whose storage it has, or the first result with it; -1: it has
    one of its own, as large as itself, or of `size` bytes."""

    form: _Form
    home: int
    size: int = 0


@dataclass(frozen=True)
class _Known:
    """What a function gives. structure: of its value. events: what it sends, and waits for, counted
    from its own first message."""

    made: tuple[_Made, ...]
    structure: Any
    events: tuple[Message | int, ...]


class Memo:
    """Wrapper of emitted functions, as a compiler is one.

    known: what functions gave, of all ranks so far.
    """

    def __init__(self, trace: Trace, held: Held, known: dict[Any, _Known]) -> None:
        self.trace, self.held, self.known = trace, held, known

    def __call__(self, function: Callable) -> Callable:
        """Return the function that runs once for given shapes."""
        names = function.__globals__
        numbers = tuple(sorted((k, v) for k, v in names.items() if type(v) is int))
        name = (names["__name__"], function.__name__, numbers)

        def call(*arguments: Any) -> Any:
            given: list[Tensor] = []
            structure = _taken_apart(arguments, given)
            forms = tuple(_form(x) for x in given)
            key = (name, structure, forms, tuple(_homes(given)))
            if key in self.known:
                return self._again(self.known[key], given)
            return self._first(function, arguments, key, given)

        return call

    def _first(self, function: Callable, arguments: Any, key: Any, given: list[Tensor]) -> Any:
        begun, messages = len(self.trace.events), self.trace.num_messages
        out = function(*arguments)
        made: list[Tensor] = []
        structure = _taken_apart(out, made)
        homes = _homes([*given, *made])
        self.known[key] = _Known(
            tuple(
                _Made(_form(x), -1, _padding(x)) if home == place else _Made(_form(x), home)
                for place, (x, home) in enumerate(
                    zip(made, homes[len(given) :], strict=True), len(given)
                )
            ),
            structure,
            tuple(
                event - messages if isinstance(event, int) else event
                for event in self.trace.events[begun:]
            ),
        )
        self.held.see((*given, *made))
        return out

    def _again(self, known: _Known, given: list[Tensor]) -> Any:
        messages = self.trace.num_messages
        for event in known.events:
            if isinstance(event, int):
                self.trace.events.append(messages + event)
            else:
                self.trace.begin(event)
        tensors = list(given)
        for made in known.made:
            home = tensors[made.home] if made.home >= 0 else None
            tensors.append(_new(made) if home is None else _part_of(home, made.form))
        self.held.see(tensors)
        return _put_together(known.structure, iter(tensors[len(given) :]))


@dataclass(frozen=True)
class _Other:
    """Part of a value that is no tensor."""

    value: Any


_TENSOR = None  # in place of each tensor of a value that is taken apart


def _taken_apart(value: Any, tensors: list[Tensor]) -> Any:
    """Return a value without its tensors, which are added to the list in order."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _TENSOR
    if isinstance(value, tuple):
        return tuple([_taken_apart(item, tensors) for item in value])
    return _Other(value)


def _put_together(structure: Any, tensors: Iterator[Tensor]) -> Any:
    if structure is _TENSOR:
        return next(tensors)
    if isinstance(structure, tuple):
        return tuple([_put_together(item, tensors) for item in structure])
    return structure.value


def _form(x: Tensor) -> _Form:
    return x.shape, x.stride(), x.storage_offset(), x.dtype


def _homes(tensors: list[Tensor]) -> list[int]:
    """Return for each tensor the first one that has its storage."""
    firsts: dict[int, int] = {}
    return [firsts.setdefault(id(x.untyped_storage()), n) for n, x in enumerate(tensors)]


def _padding(x: Tensor) -> int:
    """Return the bytes of a tensor's storage where they are not those of the tensor, else 0."""
    size = x.untyped_storage().nbytes()
    return 0 if size == x.nbytes and x.storage_offset() == 0 else size


def _new(made: _Made) -> Tensor:
    shape, stride, _, dtype = made.form
    if not made.size:
        return torch.empty_strided(shape, stride, dtype=dtype, device=META)
    return _part_of(torch.empty(made.size, dtype=torch.uint8, device=META), made.form)


def _part_of(home: Tensor, form: _Form) -> Tensor:
    """Return a tensor of this form in the storage of another one."""
    if _form(home) == form:
        return home
    shape, stride, offset, dtype = form
    empty = torch.empty(0, dtype=dtype, device=META)
    return empty.set_(home.untyped_storage(), offset, shape, stride)
