"""The semantic op of attention in place of another op, with the views that lay out its operands."""

from collections.abc import Iterator
from typing import NamedTuple

from ..graph import Op, Value
from ..sizes import Shape


class Rule(NamedTuple):
    """scale: of the scores. window: 0 for all of the past, or all keys where not `causal`."""

    scale: float
    causal: bool
    window: int


class Operands(NamedTuple):
    """q [..., S, D], keys [..., S, D] or, where `by_columns`, [..., D, S], and v [..., S, E]; all
    have dims of rows and heads, or one dim of both. grouped: heads of keys may be fewer."""

    q: Value
    keys: Value
    v: Value
    by_columns: bool = False
    grouped: bool = False


def attention_instead_of(op: Op, given: Operands, rule: Rule) -> tuple[Op, ...] | None:
    """Return ops that make the output of `op`; None where the semantic op does not take these."""
    q, k, v, *_ = given
    views: list[Op] = []
    if given.by_columns:
        *lead, size, length = k.shape
        turned = _view(op, len(views), k, (*lead, length, size), "transpose.int", dim0=-2, dim1=-1)
        views, k = [turned], turned.output
    if not len(q.shape) == len(k.shape) == len(v.shape) == len(op.output.shape):
        return None
    alone = len(q.shape) == 3
    if alone:
        of_one = [
            _view(op, n, x, _with_head(x), "unsqueeze", dim=1) for n, x in enumerate((q, k, v), 1)
        ]
        views += of_one
        q, k, v = (made.output for made in of_one)
    if not _fits(q, k, v, given.grouped) or op.output.dtype != q.dtype:
        return None
    return *views, *_attention(op, (q, k, v), rule, alone)


def _view(op: Op, number: int, value: Value, shape: Shape, target: str, **attrs: int) -> Op:
    made = Value(f"{op.output.name}.operand_{number}", value.dtype, shape)
    return Op(target, (value.name,), (made,), tuple(attrs.items()), op.source)


def _with_head(value: Value) -> Shape:
    rows, *rest = value.shape
    return (rows, 1, *rest)


def _fits(q: Value, k: Value, v: Value, grouped: bool) -> bool:
    """Return whether operands are [B, H, S, D] of one length and dtype."""
    alike = (0, 2, 3) if grouped else (0, 1, 2, 3)
    of_queries = len(q.shape) == 4 and all(q.shape[dim] == k.shape[dim] for dim in alike)
    return of_queries and k.shape[:3] == v.shape[:3] and q.dtype == k.dtype == v.dtype


def _attention(op: Op, operands: tuple[Value, ...], rule: Rule, alone: bool) -> Iterator[Op]:
    """Yield the op; behind one head `alone`, a view without its dim."""
    name, q = op.output.name, operands[0]
    made = Value(f"{name}.heads", q.dtype, _with_head(op.output)) if alone else op.output
    lse = Value(f"{name}.lse", q.dtype if q.dtype == "f64" else "f32", q.shape[:-1])
    attrs = (*rule._asdict().items(), ("softcap", 0.0))
    yield Op("mw.attention", tuple(x.name for x in operands), (made, lse), attrs, op.source)
    if alone:
        yield Op("squeeze.dim", (made.name,), (op.output,), (("dim", 1),), op.source)
