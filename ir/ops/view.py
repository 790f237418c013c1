"""Views: reshapes by common factors, permutations, broadcasts, slices. They move nothing."""

from dataclasses import replace

from ..graph import Op, Value
from .definition import FactorRule, OpDef, Rule
from .factors import blocks_of, common_factors, same_dims
from .pointwise import pointwise_rule


def _reshape(op: Op, inputs: list[Value]) -> Rule:
    before, after, sizes = common_factors(inputs[0].shape, op.output.shape)
    return Rule((before,), (after,), sizes, linear=True)


def _transpose(op: Op, inputs: list[Value]) -> Rule:
    rank = len(inputs[0].shape)
    order = list(range(rank))
    a = int(op.attr("dim0", 0)) % rank
    b = int(op.attr("dim1", rank - 1)) % rank
    order[a], order[b] = order[b], order[a]
    return _ordered(inputs[0], order)


def _permute(op: Op, inputs: list[Value]) -> Rule:
    rank = len(inputs[0].shape)
    return _ordered(inputs[0], [int(k) % rank for k in op.attr("dims")])


def _ordered(x: Value, order: list[int]) -> Rule:
    dims, sizes = same_dims(x.shape)
    return Rule((dims,), (tuple(dims[k] for k in order),), sizes, linear=True)


def _expand(op: Op, inputs: list[Value]) -> Rule:
    return replace(pointwise_rule(op, inputs), linear=False)


def _slice(op: Op, inputs: list[Value]) -> Rule:
    large, small, sizes, fixed = sliced(op, inputs[0], op.output)
    return Rule((large,), (small,), sizes, fixed=fixed, linear=True)


def sliced(op: Op, large: Value, small: Value) -> tuple[tuple, tuple, dict, frozenset[str]]:
    """Dims of both, sizes and fixed factors: the sliced dim is blocks x length when it divides."""
    rank = len(large.shape)
    dim = int(op.attr("dim", 0)) % rank
    little, sizes = same_dims(small.shape)
    if not _aligned(op, large.shape[dim], small.shape[dim]):
        sizes.pop(f"d{dim}")
        none = (*little[:dim], (), *little[dim + 1 :])
        return none, none, sizes, frozenset()
    sizes["blocks"] = blocks_of(large.shape[dim], small.shape[dim]) or 1
    big = (*little[:dim], ("blocks", f"d{dim}"), *little[dim + 1 :])
    return big, little, sizes, frozenset({"blocks"})


def _aligned(op: Op, whole: object, part: object) -> bool:
    """Whether the slice is one of the equal blocks that the dim is cut in."""
    blocks, start = blocks_of(whole, part), op.attr("start", 0) or 0
    if blocks is None or not isinstance(start, int) or part == 0 or op.attr("step", 1) != 1:
        return False
    return blocks == 1 or (isinstance(part, int) and start % part == 0)


def _view(name: str, rule: FactorRule, same_shape: bool = False) -> OpDef:
    return OpDef(name, "view", rule, vanishes="same shape" if same_shape else "never")


DEFINITIONS = (
    *(replace(_view(name, _reshape, True), reshapes=True) for name in ("view", "_unsafe_view")),
    _view("reshape", _reshape, True),
    *(_view(name, _reshape) for name in ("flatten.using_ints", "unflatten.int", "unsqueeze")),
    *(_view(name, _reshape) for name in ("squeeze", "squeeze.dim", "squeeze.dims")),
    *(_view(name, _transpose) for name in ("transpose.int", "t")),
    _view("permute", _permute),
    _view("expand", _expand, True),
    _view("slice.Tensor", _slice, True),
)
