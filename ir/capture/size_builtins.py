"""What is built into Python, wants numbers, and takes sizes here: int, float, len of a tensor.

Python binds a size to the number at hand in them. They are replaced in the files of the user, and
only where an export without that is refused. Whoever asks there for its type finds a size an int.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.utils._sympy.functions import TruncToInt

from ..sizes import size_of
from .size_questions import Seen
from .symbolic import concrete, expression_of
from .traced_apart import modules_of_user


@contextmanager
def sizes_in_builtins(seen: Seen) -> Iterator[None]:
    """Let `int`, `float` and `len` keep sizes symbols. seen: has those a forward is called on."""
    whole = _standing_for(int, torch.SymInt, partial(_whole, seen))
    number = _standing_for(float, torch.SymFloat, torch.sym_float)
    known = {int: whole, torch.SymInt: whole, float: number, torch.SymFloat: number}

    def kind(*given: Any, **named: Any) -> Any:
        found = type(*given, **named)
        return known.get(found, found)

    own = {"int": whole, "float": number, "len": _length, "type": kind}
    spaces = {id(vars(module)): vars(module) for module in modules_of_user()}
    places = [(space, name) for space in spaces.values() for name in own if name not in space]
    for space, name in places:
        space[name] = own[name]
    try:
        yield
    finally:
        for space, name in places:
            del space[name]


def _standing_for(plain: type, symbol: type, of_size: Callable[[Any], Any]) -> type:
    """Return what stands for a type of numbers. of_size: what it makes of a size."""

    class Kind(type):
        """What is asked of the type itself."""

        def __call__(cls, *given: Any, **named: Any) -> Any:
            sizes = len(given) == 1 and isinstance(given[0], torch.SymInt | torch.SymFloat)
            return of_size(given[0]) if sizes else plain(*given, **named)

        def __instancecheck__(cls, item: object) -> bool:
            return isinstance(item, plain | symbol)

        def __eq__(cls, other: object) -> bool:
            return other is plain or other is cls

        def __hash__(cls) -> int:
            return hash(plain)

    return Kind(plain.__name__, (plain,), {})


def _length(of: Any) -> Any:
    return of.shape[0] if isinstance(of, Tensor) and of.dim() else len(of)


def _whole(seen: Seen, size: Any) -> Any:
    """Return the whole part of a size as a size; the number at hand where it cannot be written."""
    if isinstance(size, torch.SymInt):
        return size
    sizes = {expression_of(n): n for n in (seen.rows, seen.length)}
    try:
        part = size_of(TruncToInt(size.node.expr))
    except ValueError:
        return int(size)
    known = not isinstance(part, sympy.Expr) or part.free_symbols <= sizes.keys()
    return concrete(part, {str(s): n for s, n in sizes.items()}) if known else int(size)
