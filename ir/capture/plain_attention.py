"""Attention that a module writes out, or masks by a tensor, as attention that holds no scores.

    softmax(q k^T * scale, masked) v        and        scaled_dot_product_attention(q, k, v, mask)

are the semantic op where the mask is causal, a window or none for every length of the sequence, as
mask_reading.py finds, nothing else reads the scores, and nothing draws. What backward takes is then
the output and a log-sum-exp a query.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from ..graph import Graph, Op, Value
from ..ops.registry import definition
from ..sizes import Shape
from .attention_ops import Operands, Rule, attention_instead_of
from .mask_reading import Masks
from .shown import Chosen, both, everywhere, negated, window_of

# Added to a score, it leaves nothing of its share: exp of it is 0 beside any other score.
_HIDES = -6e4
_CASTS = ("to", "_to_copy")
_VIEWS = ("view", "reshape", "_unsafe_view", "flatten", "unflatten")
_PRODUCTS = ("matmul", "bmm")
# Equations of torch.einsum that make scores of queries and keys, and the output of their shares.
_SCORES = re.compile(r"(\w)(\w)(\w)(\w),\1\2(\w)\4->\1\2\3\5")
_VALUES = re.compile(r"(\w)(\w)(\w)(\w),\1\2\4(\w)->\1\2\3\5")


@dataclass
class _Scores:
    """What is known of scores on the way from a softmax up to their product.

    seen: the keys that all masks show; None where it cannot be said.
    """

    scale: float = 1.0
    seen: Chosen | None = everywhere(True)

    def rule(self) -> Rule | None:
        """Return the rule of the semantic op; None where it has none."""
        if self.seen is None:
            return None
        if self.seen.constant is True:
            return Rule(self.scale, causal=False, window=0)
        window = window_of(self.seen)
        return None if window is None else Rule(self.scale, causal=True, window=window)


def attended(graph: Graph, tensors: Mapping[str, Tensor]) -> Graph:
    """Return the graph with such attention as the semantic op; what it no longer reads stays.

    tensors: constants, by what the graph's inputs refer to.
    """
    finder = _Finder(graph, Masks(graph, tensors))
    ops = [made for op in graph.ops for made in finder.instead_of(op)]
    return Graph(graph.name, graph.inputs, tuple(ops), graph.outputs)


@dataclass
class _Finder:
    """Attention of a graph. masks: what its values show."""

    graph: Graph
    masks: Masks

    def instead_of(self, op: Op) -> Iterator[Op]:
        """Yield an op, or attention in its place."""
        name = _name(op)
        found = None
        if name == "scaled_dot_product_attention":
            found = self._masked(op)
        elif name in _PRODUCTS or _sums(op, _VALUES):
            found = self._written_out(op)
        yield from found or (op,)

    def _masked(self, op: Op) -> tuple[Op, ...] | None:
        """Return attention in place of torch's under a mask that is a tensor."""
        masked = len(op.inputs) == 4 and all(op.inputs)
        if not masked or op.attr("is_causal", False) or op.attr("dropout_p", 0.0):
            return None
        q, k, v, mask = (self.graph.values[name] for name in op.inputs)
        seen = self._seen(mask.name, added=mask.dtype != "bool")
        window = None if seen is None else window_of(seen)
        if window is None or not _covers(mask.shape, q, k):
            return None
        scale = op.attr("scale")
        scale = float(q.shape[-1]) ** -0.5 if scale is None else float(scale)
        given = Operands(q, k, v, grouped=bool(op.attr("enable_gqa", False)))
        return attention_instead_of(op, given, Rule(scale, True, window))

    def _written_out(self, op: Op) -> tuple[Op, ...] | None:
        """Return attention in place of the product of a softmax and values."""
        softmax = self._behind_casts(op.inputs[0])
        if softmax is None or not _over_keys(softmax):
            return None
        found = _Scores()
        product = self._product(softmax.inputs[0], found)
        rule = found.rule()
        if product is None or rule is None:
            return None
        q, keys, v = (self.graph.values[n] for n in (*product.inputs, op.inputs[1]))
        given = Operands(q, keys, v, by_columns=_name(product) in _PRODUCTS)
        return attention_instead_of(op, given, rule)

    def _behind_casts(self, name: str) -> Op | None:
        """Return the op that makes a value which is read once, whatever dtypes it goes through."""
        op = self.graph.producer.get(name)
        while op is not None and self._read_once(op.output.name):
            if _name(op) not in _CASTS or not _is_float(op.output.dtype):
                return op
            op = self.graph.producer.get(op.inputs[0])
        return None

    def _read_once(self, name: str) -> bool:
        return len(self.graph.users[name]) == 1 and name not in self.graph.outputs

    def _product(self, name: str, found: _Scores) -> Op | None:
        """Return the product that scores begin with; None where they are made otherwise."""
        op = self._behind_casts(name)
        while op is not None and not (_name(op) in _PRODUCTS or _sums(op, _SCORES)):
            scores = self._before(op, found)
            op = None if scores is None else self._behind_casts(scores)
        return op

    def _before(self, op: Op, found: _Scores) -> str | None:
        """Return the scores before a step, which is taken down."""
        kind, scores = _name(op), op.inputs[0] if op.inputs else None
        number = op.attr("other")
        scales = kind in ("mul", "div") and len(op.inputs) == 1 and not op.attr("rounding_mode")
        if scales and isinstance(number, int | float) and number:
            found.scale *= number if kind == "mul" else 1 / number
            return scores
        if kind in _VIEWS and self.graph.values[op.inputs[0]].shape[-2:] == op.output.shape[-2:]:
            return scores
        hides = self._hidden(op) if found.scale == 1.0 else None  # a mask stands behind the scale
        if hides is None:
            return None
        scores, seen = hides
        found.seen = found.seen and both(found.seen, seen)
        return scores

    def _hidden(self, op: Op) -> tuple[str, Chosen] | None:
        """Return the scores that a step masks, and which of them are seen."""
        kind = _name(op)
        if kind == "masked_fill" and len(op.inputs) == 2 and _hides(op.attr("value")):
            hidden = self.masks.of(op.inputs[1])
            seen = negated(hidden) if isinstance(hidden, Chosen) else None
            return self._covered(op, 0, 1, seen)
        if kind == "add" and len(op.inputs) == 2 and op.attr("alpha", 1) == 1:
            for scores, mask in ((0, 1), (1, 0)):
                seen = self._seen(op.inputs[mask], added=True)
                if seen is not None:
                    return self._covered(op, scores, mask, seen)
        return self._chosen(op) if kind == "where" else None

    def _chosen(self, op: Op) -> tuple[str, Chosen] | None:
        """Read `torch.where` of scores and what hides them."""
        condition, *others = op.inputs
        shown = self.masks.of(condition)
        if not isinstance(shown, Chosen):
            return None
        if len(others) == 1 and _hides(op.attr("other")):
            return self._covered(op, 1, 0, shown)
        if len(others) == 1 and _hides(op.attr("self")):
            return self._covered(op, 1, 0, negated(shown))
        for scores, number in ((1, 2), (2, 1)) if len(others) == 2 else ():
            value = self.masks.of(op.inputs[number])
            if isinstance(value, Chosen) and _hides(value.constant):
                return self._covered(op, scores, 0, shown if scores == 1 else negated(shown))
        return None

    def _covered(
        self, op: Op, scores: int, mask: int, seen: Chosen | None
    ) -> tuple[str, Chosen] | None:
        """Return scores and what is seen of them where a mask has a value for each."""
        square = self.graph.values[op.inputs[scores]].shape[-2:]
        whole = self.graph.values[op.inputs[mask]].shape[-2:] == square
        return (op.inputs[scores], seen) if seen is not None and whole else None

    def _seen(self, mask: str, added: bool) -> Chosen | None:
        """Return which keys a mask shows. added: to scores, else it is of bools."""
        shown = self.masks.of(mask)
        if not isinstance(shown, Chosen):
            return None
        if not added:
            return shown
        kept = shown if shown.inside == 0 else shown.as_all(0.0)
        hides = kept is not None and kept.inside == 0 and _hides(kept.outside)
        return Chosen(kept.bounds, True, False) if kept is not None and hides else None


def _name(op: Op) -> str:
    return definition(op).name.partition(".")[0]


def _hides(number: object) -> bool:
    return isinstance(number, int | float) and number <= _HIDES


def _is_float(dtype: str) -> bool:
    return dtype[0] in "fb" and dtype != "bool"


def _covers(mask: Shape, q: Value, k: Value) -> bool:
    return mask[-2:] == (q.shape[2], k.shape[2])


def _over_keys(softmax: Op) -> bool:
    """Return whether an op is a softmax over the last dim."""
    last = (-1, len(softmax.output.shape) - 1)
    return _name(softmax) == "softmax" and softmax.attr("dim") in last


def _sums(op: Op, equation: re.Pattern[str]) -> bool:
    """Return whether an op is an einsum by an equation."""
    if _name(op) != "einsum" or len(op.inputs) != 2:
        return False
    return equation.fullmatch(str(op.attr("equation")).replace(" ", "")) is not None
