"""Measure of every op of an export whether it gives a row what other rows hold.

Each op runs by itself, on drawn operands of few rows, and again with all rows but one drawn anew.
That row's results must stay. What an op does is seen so whatever the values are that a forward
would give it: `t.flatten().roll(1)` moves rows also where a condition rarely reads them.
"""

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import sympy
import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ..errors import CaptureError
from ..sizes import B, S
from .nodes import where

_ROWS, _KEPT = 5, 3  # of the operands, and which row stays
_LENGTH = 6
_LIMIT = 1 << 22  # elements of the operands of an op that is run
_WAY_OUT = (
    "rows see each other. A plan cuts a batch into micro-batches, so compute each row by itself"
)


class Rows(NamedTuple):
    """Place of the rows in a value: `dim` is [outer, rows, inner], seen as three dims."""

    dim: int
    outer: int
    inner: int

    def of(self, value: Tensor, row: int = _KEPT) -> Tensor:
        """Return the part of a value that belongs to a row."""
        parts = value.unflatten(self.dim, (self.outer, _ROWS, self.inner))
        return parts.select(self.dim + 1, row)

    def owners(self, shape: list[int]) -> Tensor:
        """Return for each element of a shape the row that it belongs to."""
        found = torch.empty(shape, dtype=torch.int64)
        for row in range(_ROWS):
            self.of(found, row).fill_(row)
        return found


class RowOps:
    """The ops of one graph. symbols: B and S by torch's symbols. lengths: of S, as Exported has.

    places: where rows lie in each value that a node makes. numbers: values that number the rows.
    known: places by what an op is given, as layers repeat them. numeric: sizes as they are run.
    """

    def __init__(self, symbols: dict, lengths: tuple[int, int | None]) -> None:
        least, most = lengths
        self.symbols = symbols
        self.sizes = {B: _ROWS, S: max(least, min(_LENGTH, most or _LENGTH))}
        self.draws = torch.Generator().manual_seed(0)
        self.places: dict[Node, list[Rows | None]] = {}
        self.numbers: dict[Node, Any] = {}
        self.known: dict[tuple, list[Rows | None]] = {}
        self.exprs: dict[Any, sympy.Expr] = {}
        self.numeric: dict[sympy.Expr, int] = {}

    def check(self, graph: Graph, labels: Node | None) -> None:
        """Raise CaptureError for the first op that mixes rows. labels: what reads it is the loss.

        Ops that draw, or that torch does not run on such operands, are passed over.
        """
        of_loss = {labels} if labels is not None else set()
        for node in graph.nodes:
            if of_loss.intersection(node.all_input_nodes):
                of_loss.add(node)
                continue
            self.places[node] = [self._usual_place(node, value) for value in _tensors(node)]
            if node.op != "call_function":
                continue
            if node.target is operator.getitem:
                self._pick(node)
            elif hasattr(node.target, "_schema") and any(self.places[node]):
                self._check(node)

    def _check(self, node: Node) -> None:
        if self._numbers_rows(node):
            return
        key = (node.target, str(map_arg((node.args, node.kwargs), self._outline)))
        if key in self.known:
            self.places[node] = list(self.known[key])
            return
        if _is_view(node):
            self._follow(node)
        elif self._runs(node):
            self._check_rows_stay(node)
        else:
            self._keep(node)
        if not self.numbers.keys() & set(node.all_input_nodes):
            self.known[key] = self.places[node]

    def _outline(self, node: Node) -> str:
        """What places hang on of an operand: shape, dtype and its own places; a size by itself."""
        shapes = [(*map(self._expr, value.shape), value.dtype) for value in _tensors(node)]
        return str(shapes or node.meta.get("val")) + str(self.places.get(node))

    def _usual_place(self, node: Node, value: Tensor) -> Rows | None:
        """The row being major in its dim. Raises CaptureError where rows are cut or paired."""
        sizes = [self._expr(size) for size in value.shape]
        dims = [dim for dim, size in enumerate(sizes) if size.has(B)]
        if not dims:
            return None
        inner = sizes[dims[0]] / B
        if len(dims) > 1 or inner.has(B):
            raise CaptureError(
                f"{where(node)} makes a value of shape [{', '.join(map(str, sizes))}], which "
                f"pairs, cuts or joins rows: {_WAY_OUT}"
            )
        return Rows(dims[0], 1, self._number(inner))

    def _expr(self, size: Any) -> sympy.Expr:
        given = size.node.expr if hasattr(size, "node") else size
        if given not in self.exprs:
            self.exprs[given] = sympy.sympify(given).subs(self.symbols)
        return self.exprs[given]

    def _number(self, expr: sympy.Expr) -> int:
        if expr not in self.numeric:
            self.numeric[expr] = int(expr.subs(self.sizes))
        return self.numeric[expr]

    def _shape(self, value: Tensor) -> list[int]:
        return [self._number(self._expr(size)) for size in value.shape]

    def _pick(self, node: Node) -> None:
        parent, index = node.args
        if isinstance(parent, Node) and isinstance(node.meta.get("val"), Tensor):
            self.places[node] = [self.places.get(parent, [])[index]]  # type: ignore[index]
            if parent in self.numbers:
                self.numbers[node] = self.numbers[parent][index]

    def _numbers_rows(self, node: Node) -> bool:
        """Whether a node counts rows, or views such numbers; they may index rows, and no more."""
        numbered = self.numbers.keys() & set(node.all_input_nodes)
        if numbered and not (_is_view(node) or _indexes(node)):
            raise CaptureError(
                f"{where(node)} calculates with the numbers of rows; a plan computes some rows at "
                "a time, so what a row gives may not depend on its place in the batch"
            )
        counts = _name(node).startswith("arange")
        if counts or (numbered and _is_view(node)):
            self.numbers[node] = _run(node, self._operand)
            return True
        return False

    def _follow(self, node: Node) -> None:
        """Find where a view puts rows. Raises CaptureError where they lie in no part of one dim."""
        base = node.all_input_nodes[0]
        if node.target is torch.ops.aten.squeeze.default:
            raise CaptureError(
                f"{where(node)} without a dim drops that of the rows where there is one row; give "
                "the dim, as in squeeze(-1)"
            )
        (rows,) = self.places[base] or [None]
        if rows is None or not isinstance(base.meta.get("val"), Tensor):
            return
        owners = rows.owners(self._shape(base.meta["val"]))
        made = _run(node, lambda n: owners if n is base else self._operand(n))
        parts = made if isinstance(made, tuple | list) else [made]
        for number, (part, usual) in enumerate(zip(parts, self.places[node], strict=True)):
            if usual is not None:
                self.places[node][number] = self._place_of(node, part, usual)

    def _keep(self, node: Node) -> None:
        """Take the rows of an op that is not run to lie as in an operand of its shape."""
        for base in node.all_input_nodes:
            if [*map(self._shape, _tensors(base))] == [*map(self._shape, _tensors(node))]:
                self.places[node] = self.places.get(base, self.places[node])
                return

    def _place_of(self, node: Node, owners: Tensor, usual: Rows) -> Rows:
        for rows in _places(usual):
            if torch.equal(owners, rows.owners(list(owners.shape))):
                return rows
        raise CaptureError(f"{where(node)} puts elements of a row into others: {_WAY_OUT}")

    def _runs(self, node: Node) -> bool:
        """Whether an op is one to run: not a draw, not one of ours, and not too large."""
        tags = getattr(node.target, "tags", ())
        given = [value for n in node.all_input_nodes for value in _tensors(n)]
        sizes = [torch.Size(self._shape(value)).numel() for value in (*given, *_tensors(node))]
        return (
            torch.Tag.nondeterministic_seeded not in tags
            and node.target.namespace != "meshwright"  # type: ignore[union-attr]
            and not _name(node).startswith(("empty", "new_empty"))
            and any(any(self.places.get(n, ())) for n in node.all_input_nodes)
            and sum(sizes) <= _LIMIT
        )

    def _check_rows_stay(self, node: Node) -> None:
        operands = {n: self._operand(n) for n in node.all_input_nodes}
        others = {n: self._with_other_rows(n, given) for n, given in operands.items()}
        try:
            first, second = (_run(node, each.__getitem__) for each in (operands, others))
        except Exception:  # torch does not take such operands
            return
        pairs = zip(_listed(first), _listed(second), self.places[node], strict=True)
        for number, (one, other, usual) in enumerate(pairs):
            if usual is None:
                continue
            fits = [r for r in _places(usual) if _same(r.of(one), r.of(other))]
            if not fits:
                raise CaptureError(f"{where(node)} gives a row what other rows hold: {_WAY_OUT}")
            self.places[node][number] = next((r for r in fits if self._given(node, r)), fits[0])

    def _given(self, node: Node, rows: Rows) -> bool:
        """Whether an operand holds its rows so."""
        return any(
            place is not None and place[1:] == rows[1:]
            for n in node.all_input_nodes
            for place in self.places.get(n, ())
        )

    def _operand(self, node: Node) -> Any:
        """What stands for a node: drawn tensors, and the numbers that sizes give."""
        if node in self.numbers:
            return self.numbers[node]
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            return self._drawn(value)
        if isinstance(value, tuple | list):
            return [self._drawn(item) for item in value]
        number = self._expr(value).subs(self.sizes)
        if isinstance(number, sympy.Basic) and number.is_Boolean:
            return bool(number)
        return int(number) if number.is_Integer else float(number)

    def _drawn(self, value: Tensor) -> Tensor:
        """Of the dtype and shape of a value; integers are 0 or 1, which index most things."""
        shape = self._shape(value)
        if value.is_floating_point():
            wide = torch.randn(shape, generator=self.draws, dtype=torch.float64)
            return wide.to(value.dtype)
        return torch.randint(0, 2, shape, generator=self.draws).to(value.dtype)

    def _with_other_rows(self, node: Node, given: Any) -> Any:
        """An operand with all rows but one drawn anew."""
        places = self.places.get(node, [])
        if not isinstance(given, Tensor) or node in self.numbers or not any(places):
            return given
        (rows,) = places
        assert rows is not None
        other = self._drawn(node.meta["val"])
        rows.of(other).copy_(rows.of(given))
        return other


def _places(usual: Rows) -> Iterator[Rows]:
    """All places in one dim, the usual one first."""
    size = usual.inner
    for outer in range(1, size + 1):
        if size % outer == 0:
            yield Rows(usual.dim, outer, size // outer)


def _tensors(node: Node) -> Iterator[Tensor]:
    value = node.meta.get("val")
    return (item for item in _listed(value) if isinstance(item, Tensor))


def _listed(value: Any) -> list:
    return list(value) if isinstance(value, tuple | list) else [value]


def _run(node: Node, operand: Any) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), operand)
    kwargs = {name: value for name, value in kwargs.items() if name != "device"}
    with torch.no_grad():
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _same(one: Tensor, other: Tensor) -> bool:
    if one.is_floating_point():
        return torch.allclose(one.double(), other.double(), 1e-3, 1e-4, equal_nan=True)
    return torch.equal(one, other)


def _name(node: Node) -> str:
    return node.target.__name__  # type: ignore[union-attr]


def _is_view(node: Node) -> bool:
    """Whether an op gives elements of its operand as they are, in another shape; casts do not."""
    schema = node.target._schema  # type: ignore[union-attr]
    alias = not schema.is_mutable and any(r.alias_info for r in schema.returns)
    return alias and not _name(node).startswith("to.")


def _indexes(node: Node) -> bool:
    """Whether an op takes or writes rows by the numbers it is given."""
    return _name(node).startswith(("index.", "index_put."))
