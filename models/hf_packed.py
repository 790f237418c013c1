"""Vision towers of `transformers` that read the patches of all images as one sequence.

Such a class reads the grid of patches of each image from a tensor, loops over it, and cuts the
sequence where an image ends. All images of a plan have one grid: it is Known, a tensor with values
whatever traces, and the class gets the grid of one image alone. What it makes of the grid is made
once and repeated over the rows; where it cuts the sequence, each row is cut. Integers are made at
once; floats are traced, so that they have the dtype that the plan gives them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from .modes import without_modes

_ROPE = "get_rope_index"
_TABLES = "get_vision_"  # functions of the library that make tables of a grid
_CUTS = ("seqlens", "window_index")  # of them those that say where a sequence is cut


@contextmanager
def with_values() -> Iterator[None]:
    """Let tensors have values, on the CPU, wherever a module is built or traced."""
    with without_modes(), torch.device("cpu"):
        yield


class Known(Tensor):
    """A tensor whose values count while a module is traced. home: the device of its neighbours."""

    home: torch.device

    @classmethod
    def of(cls, value: Tensor, beside: Tensor) -> Known:
        """Return a tensor as one that is known, beside another."""
        with with_values(), torch._C.DisableTorchFunctionSubclass():
            found = value.detach().as_subclass(cls)
        found.home = beside.device
        return found

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        first = next(x for x in given if isinstance(x, Known))
        if func == Tensor.device.__get__:  # made anew each time
            return first.home
        if all(isinstance(x, Known) for x in given):
            found = _calculated(func, args, kwargs or {}, first)
            if not _has_floats(found):
                return found
        elif func is Tensor.__getitem__ and _chooses(*args):
            return _chosen(*args)
        args, kwargs = tree_map(_traced, (args, kwargs or {}))
        return func(*args, **kwargs)


def _has_floats(made: Any) -> bool:
    return any(isinstance(x, Tensor) and x.is_floating_point() for x in tree_leaves(made))


class Sizes(list):
    """Sizes of the parts of one row of a packed sequence."""


def _calculated(func: Callable, args: tuple, kwargs: dict, beside: Tensor) -> Any:
    own = tree_map(_plain, (args, {key: x for key, x in kwargs.items() if key != "device"}))
    with with_values(), torch._C.DisableTorchFunctionSubclass():
        out = func(*own[0], **own[1])
    if func is Tensor.tolist and isinstance(out, list):
        return Sizes(out)
    return tree_map(lambda x: Known.of(x, beside) if isinstance(x, Tensor) else x, out)


def _plain(x: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(Tensor) if isinstance(x, Known) else x


def _traced(x: Any) -> Any:
    """A known tensor as a constant of what is traced; anything else as it is."""
    if not isinstance(x, Known):
        return x
    with with_values():
        plain = _plain(x)
        values = plain.tolist()
    return torch.tensor(values, dtype=plain.dtype, device=x.home)


def _chooses(x: Tensor, key: Any) -> bool:
    """Tell whether a known index, and nothing else, chooses of a packed sequence."""
    index, *rest = key if isinstance(key, tuple) else (key,)
    known = isinstance(index, Known) and not isinstance(x, Known)
    return known and all(isinstance(part, slice) and part == slice(None) for part in rest)


def _chosen(x: Tensor, key: Any) -> Tensor:
    """Choose of each row of a packed sequence what a known index chooses of one."""
    index = key[0] if isinstance(key, tuple) else key
    return x.unflatten(0, (-1, index.shape[0]))[:, _traced(index)].flatten(0, 1)


@contextmanager
def one_grid(model: nn.Module, rows: Any) -> Iterator[None]:
    """Let the files of a model's classes make tables of a Known grid for `rows` images."""
    names = {type(part).__module__ for part in model.modules()}
    files = [sys.modules[name] for name in names if name.startswith("transformers.models.")]
    with ExitStack() as stack:
        for file in files:
            own = {
                name: _of_each_row(name, function, rows)
                for name, function in vars(file).items()
                if name.startswith(_TABLES) and callable(function)
            }
            stack.enter_context(patch.dict(vars(file), own))
        stack.enter_context(patch.object(torch, "arange", _of_numbers(torch.arange)))
        for place in (torch, Tensor):
            stack.enter_context(patch.object(place, "split", _cut_of(place.split)))
        yield


def _of_each_row(name: str, function: Callable, rows: Any) -> Callable:
    def table(grid: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(grid, Known):
            return function(grid, *args, **kwargs)
        found = _calculated(function, (grid, *args), kwargs, grid)
        if name.endswith(_CUTS):
            return found
        found = function(grid, *args, **kwargs) if _has_floats(found) else found
        return tree_map(lambda x: _repeated(x, rows), found)

    return table


def _repeated(x: Any, rows: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return _traced(x).unsqueeze(0).expand(rows, *x.shape).flatten(0, 1)


def _of_numbers(plain: Callable) -> Callable:
    """A function of numbers that is given known tensors, too, which torch would trace."""

    def function(*args: Any, **kwargs: Any) -> Tensor:
        return plain(*(x.tolist() if isinstance(x, Known) else x for x in args), **kwargs)

    return function


def _cut_of(plain: Callable) -> Callable:
    def split(x: Tensor, sizes: Any, dim: int = 0) -> Any:
        """Cut each row: x [1, H, B * N, D] -> parts [B, H, n, D]; all of x where one is a row."""
        if not isinstance(sizes, Sizes):
            return plain(x, sizes, dim)
        if dim == 0:
            assert len(sizes) == 1
            return (x,)
        each = x.unflatten(dim, (-1, sum(sizes))).squeeze(0).movedim(dim - 1, 0)
        return plain(each, list(sizes), dim)

    return split


def rope_of(model: nn.Module) -> Any:
    """Return the part of a model that counts positions of several axes, None without."""
    return next((part for part in model.modules() if hasattr(part, _ROPE)), None)


def positions_of(
    model: nn.Module, token: int, places: int, others: dict[str, Tensor]
) -> tuple[Tensor, int]:
    """Return what a class adds to the position of an image's first token: of each of its tokens
    and axes, int64 [3, N], and of the token behind it.

    The class itself tells, of a row that is one image between two tokens.
    """
    with with_values():
        stands = torch.tensor([[0, *[1] * places, 0]])
        found = getattr(rope_of(model), _ROPE)(
            input_ids=stands * token, mm_token_type_ids=stands, **others
        )[0][:, 0]
        return found[:, 1:-1] - 1, int(found[0, -1]) - 1


def rows_of(axes: Tensor, behind: int, hits: Tensor, places: Tensor) -> Tensor:
    """Return positions, int64 [3, B, S], of rows whose image begins at the first of `places`.

    hits: bool [B, S, N], which token of an image a token is. axes, behind: of positions_of.
    """
    count, first = hits.shape[-1], places[:, :1]
    at = torch.arange(hits.shape[1], device=hits.device)
    text = torch.where(at < first, at, at - count + behind)
    own = first + (hits * axes[:, None, None]).sum(-1)
    return torch.where(hits.sum(-1) > 0, own, text)
