"""What the ops that make a mask say of it, for every length of the sequence (shown.py)."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from ..graph import Graph, Op, Value
from ..ops.registry import definition
from ..sizes import Shape
from .shown import (
    KEYS,
    QUERIES,
    Chosen,
    Number,
    Places,
    Shown,
    at_least,
    both,
    diagonal,
    either,
    everywhere,
    negated,
)

_LARGEST = 2**28  # elements of a constant that is looked at
_EXACT = ("i64", "i32", "f64", "f32")  # dtypes that hold every place
Reader: TypeAlias = Callable[[Op, list[Shown], list[Shape]], Shown]


@dataclass
class Masks:
    """Values of a graph, read when they are asked for; layers that hold equal constants share one
    reading. tensors: constants, by what the graph's inputs refer to."""

    graph: Graph
    tensors: Mapping[str, Tensor]
    known: dict[str, Shown] = field(default_factory=dict)

    @cached_property
    def _refs(self) -> dict[str, str]:
        return {i.value.name: i.ref for i in self.graph.inputs_of("constant")}

    def of(self, name: str) -> Shown:
        """Return what a value shows; None of one that is no mask."""
        key = self._refs.get(name, name)
        if key not in self.known:
            self.known[key] = self._read(key)
        return self.known[key]

    def _read(self, key: str) -> Shown:
        if key in self.tensors:
            return of_matrix(self.tensors[key])
        op = self.graph.producer.get(key)
        reader = None if op is None else _READERS.get(definition(op).name.partition(".")[0])
        if op is None or reader is None or len(op.outputs) != 1:
            return None
        inputs = [n for n in op.inputs if n]
        shapes = [self.graph.values[n].shape for n in inputs]
        return _of_shape(reader(op, [self.of(n) for n in inputs], shapes), op.output)


def _of_shape(shown: Shown, value: Value) -> Shown:
    """Return what an op says of its value: along a dim of size 1 the place is 0."""
    if isinstance(shown, Places) and value.dtype not in _EXACT:
        return None
    rank = len(value.shape)
    single = frozenset(d - rank for d, size in enumerate(value.shape) if size == 1)
    return shown and shown.at_first(single)


def of_matrix(values: Tensor) -> Chosen | None:
    """Read a constant [..., L, L]: one value up to the diagonal, or a window below it, and another
    behind it, or one value everywhere."""
    if not 0 < values.numel() <= _LARGEST or values.is_complex():
        return None
    if bool((values == values.reshape(-1)[0]).all()):
        return everywhere(values.reshape(-1)[0].item())
    if values.dim() < 2 or values.numel() != values.shape[-1] ** 2:
        return None
    matrix = values.reshape(values.shape[-2:])
    length = matrix.shape[-1]
    window = int((matrix[-1] == matrix[-1, -1]).flip(0).cumprod(0).sum())
    bounds = {diagonal(0, lower=True)}
    bounds |= {diagonal(-(window - 1), lower=False)} if window < length else set()
    seen = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)
    inside, outside = matrix[0, 0], matrix[0, -1]
    if not torch.equal(matrix, torch.where(seen, inside, outside)):
        return None
    return Chosen(frozenset(bounds), inside.item(), outside.item())


def _arange(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    start, step = op.attr("start", 0), op.attr("step", 1)
    whole = isinstance(start, int) and isinstance(step, int)
    return Places(frozenset({(KEYS, step)}), start) if whole and step else None


def _filled(number: Number | None) -> Reader:
    def read(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
        value = op.attr("fill_value", op.attr("s")) if number is None else number
        if not isinstance(value, int | float):
            return None
        return everywhere(bool(value) if op.output.dtype == "bool" else value)

    return read


def _part(lower: bool) -> Reader:
    """Of `tril` and `triu`."""

    def read(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
        (x,), offset = given, op.attr("diagonal", 0)
        kept = x.as_all(x.inside) if isinstance(x, Chosen) else None
        if kept is None or not isinstance(offset, int) or (kept.bounds and kept.outside != 0):
            return None
        bound = diagonal(offset, lower)
        return Chosen(kept.bounds | {bound}, kept.inside, type(kept.inside)(0))

    return read


def _same(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    return given[0]


def _cast(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    x, made = given[0], op.output.dtype
    if isinstance(x, Chosen):
        return x.each(bool if made == "bool" else float)
    return None if made == "bool" else x


def _reshaped(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    """Where sizes of 1 come or go alone."""
    x, before, after = given[0], _long_dims(shapes[0]), _long_dims(op.output.shape)
    same = [shapes[0][d] for d in before] == [op.output.shape[d] for d in after]
    return x.moved(dict(zip(before, after, strict=True)).__getitem__) if x and same else None


def _long_dims(shape: Shape) -> list[int]:
    """Return the dims, from the end, whose size is not 1."""
    return [d - len(shape) for d, size in enumerate(shape) if size != 1]


def _selected(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    """Of a dim of size 1, whose place no value is made of."""
    x, rank = given[0], len(shapes[0])
    taken = int(op.attr("dim")) % rank - rank
    single = x is not None and shapes[0][taken] == 1
    return x.moved(lambda dim: dim + (dim < taken)) if x is not None and single else None


def _transposed(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    rank = len(shapes[0])
    a, b = (int(op.attr(name)) % rank - rank for name in ("dim0", "dim1"))
    return given[0] and given[0].moved(lambda dim: {a: b, b: a}.get(dim, dim))


def _matrix_transposed(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    swap = {QUERIES: KEYS, KEYS: QUERIES}
    return given[0] and given[0].moved(lambda dim: swap.get(dim, dim))


def _sliced(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    """The first part of a dim."""
    first = op.attr("start") in (None, 0) and op.attr("step", 1) == 1
    return given[0] if first else None


def _compared(compare: Callable[[Number, Number], bool], strict: bool, above: bool) -> Reader:
    def read(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
        a, b = _operands(op, given)
        if isinstance(a, Places) and isinstance(b, Places):
            high, low = (a, b) if above else (b, a)
            return at_least(high, low.plus(int(strict)))
        return _of_numbers(compare, a, b)

    return read


def _of_numbers(to: Callable[..., Number], *shown: Shown) -> Chosen | None:
    """Return what a function gives of numbers that are the same everywhere, or chosen alike."""
    chosen = [x for x in shown if isinstance(x, Chosen)]
    bounds = {x.bounds for x in chosen if x.constant is None}
    if len(chosen) < len(shown) or len(bounds) > 1:
        return None
    outside = (x.outside if x.constant is None else x.constant for x in chosen)
    return Chosen(next(iter(bounds), frozenset()), to(*(x.inside for x in chosen)), to(*outside))


def _equal(compare: Callable[[Number, Number], bool]) -> Reader:
    return lambda op, given, shapes: _of_numbers(compare, *_numbers(op, given))


def _operands(op: Op, given: list[Shown]) -> tuple[Shown, Shown]:
    """Return both operands; a whole number beside places is one of them."""
    a, b = _numbers(op, given)
    if isinstance(a, Places) or isinstance(b, Places):
        return _as_places(a), _as_places(b)
    return a, b


def _numbers(op: Op, given: list[Shown]) -> tuple[Shown, Shown]:
    if len(given) == 2:
        return given[0], given[1]
    other = op.attr("other")
    return given[0], everywhere(other) if isinstance(other, int | float) else None


def _as_places(x: Shown) -> Shown:
    number = x.constant if isinstance(x, Chosen) else None
    whole = number is not None and number == int(number)
    return Places(frozenset(), int(number)) if whole and number is not None else x


def _arithmetic(to: Callable[[Number, Number], Number], sign: int = 0) -> Reader:
    """sign: of the second operand of a sum, 0 of no sum."""

    def read(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
        if op.attr("alpha", 1) != 1 or op.attr("rounding_mode") is not None:
            return None
        a, b = _operands(op, given)
        if isinstance(a, Places) and isinstance(b, Places):
            return a.and_places(b.times(sign)) if sign else None
        return _of_numbers(to, a, b)

    return read


def _divided(a: Number, b: Number) -> Number:
    return a / b if b else float("nan")


def _reversed(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    """Of `rsub`."""
    a, b = _operands(op, given)
    if isinstance(a, Places) and isinstance(b, Places):
        return b.and_places(a.times(-1))
    return _of_numbers(lambda x, y: y - x, a, b) if op.attr("alpha", 1) == 1 else None


def _opposite(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    x = given[0]
    return x.times(-1) if isinstance(x, Places) else x and x.each(operator.neg)


def _logical(join: Callable[[Chosen, Chosen], Chosen | None]) -> Reader:
    def read(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
        bools = [x for x in given if isinstance(x, Chosen) and isinstance(x.inside, bool)]
        return join(*bools) if len(bools) == 2 and op.output.dtype == "bool" else None

    return read


def _not(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    x = given[0]
    return negated(x) if isinstance(x, Chosen) and op.output.dtype == "bool" else None


def _where(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    condition, *others = given
    others += [everywhere(op.attr(name)) for name in ("other",) if op.attr(name) is not None]
    return _picked(condition, *others) if len(others) == 2 else None


def _masked_fill(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    x, hidden, *value = given
    number = op.attr("value")
    filled = value[0] if value else None if number is None else everywhere(number)
    return _picked(hidden, filled, x)


def _picked(condition: Shown, true: Shown, false: Shown) -> Shown:
    """Return one of two where a bool is true, and the other elsewhere."""
    return _of_numbers(lambda where, a, b: a if where else b, condition, true, false)


def _joined(op: Op, given: list[Shown], shapes: list[Shape]) -> Shown:
    """Where all other parts are empty."""
    parts = [x for x, shape in zip(given, shapes, strict=True) if 0 not in shape]
    return parts[0] if len(parts) == 1 else None


_READERS: dict[str, Reader] = {
    "arange": _arange,
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _filled(1.0)),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), _filled(0.0)),
    **dict.fromkeys(("full", "full_like", "new_full", "scalar_tensor"), _filled(None)),
    "tril": _part(lower=True),
    "triu": _part(lower=False),
    **dict.fromkeys(("expand", "clone", "detach", "alias", "contiguous"), _same),
    **dict.fromkeys(("to", "_to_copy"), _cast),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze"), _reshaped),
    **dict.fromkeys(("transpose", "swapaxes"), _transposed),
    **dict.fromkeys(("t", "mT", "numpy_T"), _matrix_transposed),
    "slice": _sliced,
    "select": _selected,
    **dict.fromkeys(("cat", "concat", "hstack", "vstack"), _joined),
    "ge": _compared(operator.ge, strict=False, above=True),
    "gt": _compared(operator.gt, strict=True, above=True),
    "le": _compared(operator.le, strict=False, above=False),
    "lt": _compared(operator.lt, strict=True, above=False),
    "eq": _equal(operator.eq),
    "ne": _equal(operator.ne),
    "add": _arithmetic(operator.add, 1),
    "sub": _arithmetic(operator.sub, -1),
    "mul": _arithmetic(operator.mul),
    "div": _arithmetic(_divided),
    "rsub": _reversed,
    "neg": _opposite,
    **dict.fromkeys(("__and__", "bitwise_and", "logical_and"), _logical(both)),
    **dict.fromkeys(("__or__", "bitwise_or", "logical_or"), _logical(either)),
    **dict.fromkeys(("bitwise_not", "logical_not"), _not),
    "where": _where,
    "masked_fill": _masked_fill,
}
