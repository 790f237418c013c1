"""Reductions over dims, and what keeps the shape and takes one dim as a whole."""

from dataclasses import replace

from ..graph import Op, Value
from .definition import FactorRule, OpDef, Rule
from .factors import same_dims
from .pointwise import pointwise_rule


def _reduction(kind: str | None) -> FactorRule:
    """The rule of a reduction; None: the reduced dims stay whole."""

    def make(op: Op, inputs: list[Value]) -> Rule:
        source, sizes = same_dims(inputs[0].shape)
        reduced = reduced_dims(op, len(source))
        keep = bool(op.attr("keepdim", False))
        out = tuple(
            () if k in reduced else dims
            for k, dims in enumerate(source)
            if keep or k not in reduced
        )
        names = frozenset(f"d{k}" for k in reduced)
        if kind is None:
            return Rule((source,), (out,), sizes, fixed=names)
        return Rule((source,), (out,), sizes, ({n: kind for n in names},), linear=kind == "sum")

    return make


def reduced_dims(op: Op, rank: int) -> set[int]:
    """Return the dims that a reduction reduces: all where none is named."""
    given = op.attr("dim")
    listed = given if isinstance(given, tuple) else () if given is None else (given,)
    return {int(k) % rank for k in listed or range(rank)} if rank else set()


def _along_one(op: Op, inputs: list[Value]) -> Rule:
    dim = int(op.attr("dim", -1)) % len(op.output.shape)
    return replace(pointwise_rule(op, inputs), fixed=frozenset({f"d{dim}"}))


DEFINITIONS = (
    OpDef("sum", "reduction", _reduction("sum")),
    OpDef("sum.dim_IntList", "reduction", _reduction("sum"), sums_dims=True),
    OpDef("mean", "reduction", _reduction(None)),
    OpDef("mean.dim", "reduction", _reduction(None), averages_dims=True),
    OpDef("amax", "reduction", _reduction("max")),
    OpDef("_softmax", "kernel", _along_one),
    OpDef("logcumsumexp", "kernel", _along_one),
)
