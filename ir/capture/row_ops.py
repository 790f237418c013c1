"""Measure of every op of an export whether it gives a row what other rows hold.

Each op runs by itself, on drawn operands of few rows, and again with all rows but one drawn anew.
That row's results must stay; where all rows move by one place, so must the results. It is tried for
each row, for operands of several kinds and at two numbers of rows. What an op does is seen so
whatever the values are that a forward would give it: `t.flatten().roll(1)` moves rows also where a
condition rarely reads them. Values that sizes alone give are the true ones.
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
from ..lengths import Lengths
from ..sizes import B
from .nodes import where
from .steps import symbol_of

_SIZES = ((5, 6), (7, 4))  # rows and tokens of the operands
_LIMIT = 1 << 24  # elements of the operands of an op that is run
# Elements of an op that is tried less often, and of one that is tried once.
_LARGE, _VERY_LARGE = 1 << 16, 1 << 20
_WAY_OUT = (
    "rows see each other. A plan cuts a batch into micro-batches, so compute each row by itself"
)


_PLACE = (
    "a plan computes some rows at a time, so compute each row by itself, whatever its "
    "place in the batch"
)


class Kind(NamedTuple):
    """Kind of drawn operands.

    scale: factor of floats. whole: the least integer and one past the largest, which is the number
    of rows where it is 0. other: the same for the rows that are drawn anew.
    """

    scale: float
    whole: tuple[int, int]
    other: tuple[int, int]


_KINDS = (
    Kind(1.0, (0, 2), (0, 2)),
    Kind(1e3, (0, 0), (0, 0)),
    Kind(1e-3, (0, 1), (1, 2)),
    Kind(30.0, (1, 2), (0, 1)),
)


class Rows(NamedTuple):
    """Place of the rows in a value: `dim` is [outer, total, inner], seen as three dims."""

    dim: int
    outer: int
    total: int
    inner: int

    def parts(self, value: Tensor) -> Tensor:
        """Return a value with its rows in front."""
        split = value.unflatten(self.dim, (self.outer, self.total, self.inner))
        return split.movedim(self.dim + 1, 0)

    def moved(self, value: Tensor) -> Tensor:
        """Return a value with each row in the next one's place."""
        rolled = self.parts(value).roll(1, 0).movedim(0, self.dim + 1)
        return rolled.flatten(self.dim, self.dim + 2)

    def owners(self, shape: list[int]) -> Tensor:
        """Return for each element of a shape the row that it belongs to."""
        found = torch.empty(shape, dtype=torch.int64)
        for row, part in enumerate(self.parts(found)):
            part.fill_(row)
        return found


def check_row_ops(graph: Graph, symbols: dict, lengths: Lengths, labels: Node | None) -> None:
    """Raise CaptureError for the first op of a graph that mixes rows.

    symbols: B and S by torch's symbols. lengths: of S, as Exported has. labels: what reads it is
    the loss. Ops that draw, or that torch does not run on such operands, are passed over.
    """
    for rows, length in _SIZES:
        steps = lengths.near(length) // lengths.step
        sizes = {B: rows, symbol_of(lengths.step): steps}
        RowOps(symbols, sizes).check(graph, labels)


class RowOps:
    """The ops of one graph at some sizes.

    places: where rows lie in each value that a node makes. pure: values that sizes alone give.
    numbers: those of them that are not the same for all rows. known: places by what an op is given,
    as layers repeat them. exprs, numeric: sizes that were asked for.
    """

    def __init__(self, symbols: dict, sizes: dict[sympy.Symbol, int]) -> None:
        self.symbols, self.sizes = symbols, sizes
        self.draws = torch.Generator().manual_seed(0)
        self.places: dict[Node, list[Rows | None]] = {}
        self.pure: dict[Node, Any] = {}
        self.numbers: set[Node] = set()
        self.known: dict[tuple, list[Rows | None]] = {}
        self.exprs: dict[Any, sympy.Expr] = {}
        self.numeric: dict[sympy.Expr, int] = {}

    def check(self, graph: Graph, labels: Node | None) -> None:
        """Raise CaptureError as check_row_ops does."""
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
            elif hasattr(node.target, "_schema") and self.places[node]:
                self._check(node)

    def _check(self, node: Node) -> None:
        if self._is_pure(node):
            return
        if not any(self.places[node]):
            self._check_numbers(node)
            return
        key = (node.target, str(map_arg((node.args, node.kwargs), self._outline)))
        if key in self.known:
            self.places[node] = list(self.known[key])
            return
        self._check_numbers(node)
        if _is_view(node):
            self._follow(node)
        elif self._runs(node):
            self._check_rows(node)
        else:
            self._keep(node)
        if not self.pure.keys() & set(node.all_input_nodes):
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
        return Rows(dims[0], 1, self.sizes[B], self._number(inner))

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
            if parent in self.pure:
                self.pure[node] = self.pure[parent][index]
                self.numbers.update({node} if parent in self.numbers else ())

    def _is_pure(self, node: Node) -> bool:
        """Whether sizes alone give a value, which is then computed."""
        given = [n for n in node.all_input_nodes if list(_tensors(n))]
        given = given[:1] if _is_view(node) else given  # as expand_as reads the shape of another
        if not all(n in self.pure for n in given) or not self._runs(node):
            return False
        try:
            value = _run(node, self._operand)
        except Exception:
            return False
        self.pure[node] = value
        parts = zip(_listed(value), self.places[node], strict=True)
        apart = any(rows and not _all_alike(rows.parts(part)) for part, rows in parts)
        if apart or (self.numbers.intersection(given) and not self._picks_own_rows(node)):
            self.numbers.add(node)
        return True

    def _picks_own_rows(self, node: Node) -> bool:
        """Whether numbers of rows say which row of a value to take, and all its rows are alike."""
        if _name(node) != "index.Tensor":
            return False
        base, indices = node.args[:2]
        (rows,) = self.places.get(base, [None])  # type: ignore[arg-type]
        told = [n for n, index in enumerate(indices) if index in self.numbers]  # type: ignore
        return rows is not None and base not in self.numbers and told == [rows.dim]

    def _check_numbers(self, node: Node) -> None:
        """Refuse what calculates with the numbers of rows; they may index rows, and no more."""
        if self.numbers.intersection(node.all_input_nodes) and not _indexes(node):
            raise CaptureError(f"{where(node)} calculates with the numbers of rows; {_PLACE}")

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
        return (
            torch.Tag.nondeterministic_seeded not in tags
            and node.target.namespace != "meshwright"  # type: ignore[union-attr]
            and not _name(node).startswith(("empty", "new_empty"))
            and self._size_of(node) <= _LIMIT
        )

    def _size_of(self, node: Node) -> int:
        """Elements of all operands and results of an op."""
        given = [value for n in node.all_input_nodes for value in _tensors(n)]
        sizes = [torch.Size(self._shape(value)).numel() for value in (*given, *_tensors(node))]
        return sum(sizes)

    def _check_rows(self, node: Node) -> None:
        if self._hangs_on_places(node):
            raise CaptureError(
                f"{where(node)} gives a row what its place in the batch says; {_PLACE}"
            )
        fits = [list(_places(usual)) if usual else [] for usual in self.places[node]]
        for kind, kept in self._tries(node):
            try:
                first, second = self._two_runs(node, kind, kept)
            except Exception:  # torch does not take such operands
                continue
            for number, (one, other) in enumerate(zip(first, second, strict=True)):
                fits[number] = [r for r in fits[number] if _stays(r, one, other, kept)]
        for number, (usual, left) in enumerate(zip(self.places[node], fits, strict=True)):
            if usual and not left:
                raise CaptureError(f"{where(node)} gives a row what other rows hold: {_WAY_OUT}")
            if usual:
                self.places[node][number] = next((r for r in left if self._given(node, r)), left[0])

    def _hangs_on_places(self, node: Node) -> bool:
        """Whether an op shows at some numbers of rows only that it moves or marks them."""
        (rows, *_), name = self.places[node], _name(node).partition(".")[0]
        value = node.meta["val"]
        if rows is None or not isinstance(value, Tensor):
            return False
        if name == "roll" and len(node.args) > 2:
            moved: Any = node.args[2]
            return rows.dim in [dim % value.ndim for dim in moved]
        return name in ("tril", "triu") and rows.dim >= value.ndim - 2

    def _tries(self, node: Node) -> list[tuple[Kind, int | None]]:
        """Kinds of operands, each with the row that stays; None: all rows move by one place."""
        count = self.sizes[B]
        size = self._size_of(node)
        if size > _VERY_LARGE:
            return [(_KINDS[0], count // 2 + 1)]
        moves = [] if self.numbers.intersection(node.all_input_nodes) else [None]
        if size > _LARGE:
            few = [(_KINDS[0], row) for row in (*moves, 0, count // 2 + 1)]
            return [*few, (_KINDS[2], count - 1)]
        return [(kind, row) for kind in _KINDS for row in (*moves, *range(count))]

    def _two_runs(self, node: Node, kind: Kind, kept: int | None) -> tuple[list, list]:
        """What an op gives for drawn operands, and for the same with other or moved rows."""
        operands = {n: self._operand(n, kind) for n in node.all_input_nodes}
        others = {n: self._changed(n, given, kind, kept) for n, given in operands.items()}
        first, second = (_run(node, each.__getitem__) for each in (operands, others))
        return _listed(first), _listed(second)

    def _given(self, node: Node, rows: Rows) -> bool:
        """Whether an operand holds its rows so."""
        return any(
            place is not None and place[1:] == rows[1:]
            for n in node.all_input_nodes
            for place in self.places.get(n, ())
        )

    def _operand(self, node: Node, kind: Kind = _KINDS[0]) -> Any:
        """What stands for a node: drawn tensors, and what sizes give."""
        if node in self.pure:
            return self.pure[node]
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            return self._drawn(value, kind.scale, kind.whole)
        if isinstance(value, tuple | list):
            return [self._drawn(item, kind.scale, kind.whole) for item in value]
        number = self._expr(value).subs(self.sizes)
        if isinstance(number, sympy.Basic) and number.is_Boolean:
            return bool(number)
        return int(number) if number.is_Integer else float(number)

    def _drawn(self, value: Tensor, scale: float, whole: tuple[int, int]) -> Tensor:
        """Of the dtype and shape of a value. whole: bounds of integers."""
        shape = self._shape(value)
        if value.is_floating_point():
            return (scale * torch.randn(shape, generator=self.draws)).to(value.dtype)
        low, high = whole[0], whole[1] or self.sizes[B]
        return torch.randint(low, high, shape, generator=self.draws).to(value.dtype)

    def _changed(self, node: Node, given: Any, kind: Kind, kept: int | None) -> Any:
        """An operand with all rows but one drawn anew, or moved by one place."""
        places = self.places.get(node, [])
        if not isinstance(given, Tensor) or node in self.numbers or not any(places):
            return given
        (rows,) = places
        assert rows is not None
        if kept is None:
            return rows.moved(given)
        if node in self.pure:
            return given
        other = self._drawn(node.meta["val"], kind.scale, kind.other)
        rows.parts(other)[kept].copy_(rows.parts(given)[kept])
        return other


def _stays(rows: Rows, one: Tensor, other: Tensor, kept: int | None) -> bool:
    if kept is None:
        return _same(rows.moved(one), other)
    return _same(rows.parts(one)[kept], rows.parts(other)[kept])


def _all_alike(parts: Tensor) -> bool:
    return bool((parts == parts[:1]).all())


def _places(usual: Rows) -> Iterator[Rows]:
    """All places in one dim, the usual one first."""
    size = usual.inner
    for outer in range(1, size + 1):
        if size % outer == 0:
            yield Rows(usual.dim, outer, usual.total, size // outer)


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
    """Whether two results are one but for rounding, in relation to the largest finite element."""
    if torch.equal(one, other):
        return True
    if not one.is_floating_point():
        return False
    size = one.double().nan_to_num(0.0, 0.0, 0.0).abs().amax() if one.numel() else 0.0
    slack = float(size) * max(1e-5, 8 * torch.finfo(one.dtype).eps)
    return torch.allclose(one.double(), other.double(), 1e-3, slack, equal_nan=True)


def _name(node: Node) -> str:
    return node.target.__name__  # type: ignore[union-attr]


def _is_view(node: Node) -> bool:
    """Whether an op gives elements of its operand as they are, in another shape; casts do not."""
    schema = node.target._schema  # type: ignore[union-attr]
    alias = not schema.is_mutable and any(r.alias_info for r in schema.returns)
    return alias and not _name(node).startswith("to.")


def _indexes(node: Node) -> bool:
    """Whether an op takes or writes rows by the numbers it is given."""
    return _name(node).startswith(("index.", "index_put.", "embedding_bag"))
