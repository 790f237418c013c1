"""The op table: for each op the factors of its dims, its flops, and what it costs to move.

A factor rule names, for every operand and output, the factors of each dim, major to minor (as in
Shardy's sharding rules). `mw.linear`: x [b s i], w [o i] -> [b s o] with `i` contracting. One rule
answers which placements are legal (a factor sharded wherever it appears), what is partial after
sharding a factor that an output lacks, and what the local shapes are.

Pure functions over ops; torch appears nowhere.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeVar

from ..graph import Graph, Op, Value
from ..sizes import Shape, Size, num_elements

Item = TypeVar("Item")
Dims = tuple[tuple[str, ...], ...]  # per dim its factors, major to minor


@dataclass(frozen=True)
class Rule:
    """Factors of one op.

    sizes: of each factor. reduce: for each output, {factor: "sum"|"max"|"lse"} over factors that
    it lacks. fixed: factors that must stay whole. linear: partial sums pass through. ordered: fixed
    factors that a context axis may cut, as the op is told where its shard begins.
    """

    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    sizes: dict[str, Size]
    reduce: tuple[dict[str, str], ...] = ()
    fixed: frozenset[str] = frozenset()
    linear: bool = False
    ordered: frozenset[str] = frozenset()


POINTWISE = frozenset(
    """add.Tensor sub.Tensor mul.Tensor div.Tensor rsub.Scalar add.Scalar sub.Scalar mul.Scalar
    div.Scalar neg abs exp log sqrt rsqrt reciprocal pow.Tensor_Scalar pow.Scalar sin cos tanh
    sigmoid relu silu gelu silu_backward gelu_backward tanh_backward sigmoid_backward
    threshold_backward _to_copy to.dtype where.self where.ScalarOther eq.Scalar ne.Scalar gt.Scalar
    lt.Scalar ge.Scalar le.Scalar eq.Tensor ne.Tensor gt.Tensor lt.Tensor le.Tensor ge.Tensor
    logical_not logical_and bitwise_and.Tensor bitwise_or.Tensor maximum minimum clamp clamp_min
    clone detach alias ones_like zeros_like fill.Scalar masked_fill.Scalar sign""".split()
)
LINEAR_POINTWISE = frozenset("neg mul.Scalar div.Scalar".split())
VIEWS = frozenset("view _unsafe_view reshape flatten unflatten.int squeeze unsqueeze".split())
VIEWS |= frozenset("squeeze.dim squeeze.dims".split())
PERMUTES = frozenset("transpose.int permute t".split())
SOURCES = frozenset(
    "arange arange.start arange.start_step scalar_tensor full zeros ones new_zeros new_ones".split()
)


# A collective that the plan writes out; its attribute `kind` names it.
REDISTRIBUTE = "redistribute"


def rule_of(op: Op, graph: Graph) -> Rule | None:
    """The op's factor rule, or None for an op the table lacks (it is then replicated)."""
    inputs = [graph.values[name] for name in op.inputs if name]
    make = RULES.get(op.target)
    return make(op, inputs) if make is not None else None


def known(target: str) -> bool:
    return target in RULES


def _pointwise(op: Op, inputs: list[Value]) -> Rule:
    out = op.output
    sizes = {f"d{k}": size for k, size in enumerate(out.shape)}
    dims = tuple((f"d{k}",) for k in range(len(out.shape)))
    both_partial = op.target in ("add.Tensor", "sub.Tensor") and len(inputs) == 2
    same = all(v.shape == out.shape for v in inputs)
    linear = op.target in LINEAR_POINTWISE or (both_partial and same)
    return Rule(
        tuple(_broadcast(v.shape, out.shape) for v in inputs), (dims,), sizes, linear=linear
    )


def _broadcast(shape: Shape, out: Shape) -> Dims:
    offset = len(out) - len(shape)
    return tuple(
        (f"d{k + offset}",) if size == out[k + offset] else () for k, size in enumerate(shape)
    )


def _expand(op: Op, inputs: list[Value]) -> Rule:
    rule = _pointwise(op, inputs)
    return Rule(rule.inputs, rule.outputs, rule.sizes)


def _source(op: Op, inputs: list[Value]) -> Rule:
    dims = tuple(() for _ in op.output.shape)
    return Rule(tuple(tuple(() for _ in v.shape) for v in inputs), (dims,), {})


def _reduction(kind: str | None) -> Callable[[Op, list[Value]], Rule]:
    def make(op: Op, inputs: list[Value]) -> Rule:
        (x,) = inputs
        rank = len(x.shape)
        given = op.attr("dim")
        dims = range(rank) if given is None else _dims_of(given, rank)
        reduced = {k % rank for k in dims} if rank else set()
        keep = bool(op.attr("keepdim", False))
        out = tuple(
            () if k in reduced else (f"d{k}",) for k in range(rank) if keep or k not in reduced
        )
        names = frozenset(f"d{k}" for k in reduced)
        sizes = {f"d{k}": size for k, size in enumerate(x.shape)}
        source = (tuple((f"d{k}",) for k in range(rank)),)
        if kind is None:
            return Rule(source, (out,), sizes, fixed=names)
        return Rule(source, (out,), sizes, ({n: kind for n in names},), linear=kind == "sum")

    return make


def _dims_of(given: object, rank: int) -> list[int]:
    listed = given if isinstance(given, tuple) else (given,)
    return [int(k) for k in listed] or list(range(rank))


def _view(op: Op, inputs: list[Value]) -> Rule:
    before, after, sizes = common_factors(inputs[0].shape, op.output.shape)
    return Rule((before,), (after,), sizes, linear=True)


def common_factors(before: Shape, after: Shape) -> tuple[Dims, Dims, dict[str, Size]]:
    """Factors shared by two shapes of one buffer, by walking both from the major dim.

    A pair of dims that neither divides the other becomes one unnamed, whole group.
    """
    left: list[list[str]] = [[] for _ in before]
    right: list[list[str]] = [[] for _ in after]
    sizes: dict[str, Size] = {}
    i = j = 0
    rest_i: Size = before[0] if before else 1
    rest_j: Size = after[0] if after else 1

    def advance(index: int, shape: Shape) -> tuple[int, Size]:
        index += 1
        return index, (shape[index] if index < len(shape) else 1)

    while i < len(before) and j < len(after):
        if rest_i == 1 and rest_j != 1:
            i, rest_i = advance(i, before)
        elif rest_j == 1 and rest_i != 1:
            j, rest_j = advance(j, after)
        elif rest_i == 1 and rest_j == 1:
            i, rest_i = advance(i, before)
            j, rest_j = advance(j, after)
        else:
            size = _common(rest_i, rest_j)
            if size is None:
                return tuple(() for _ in before), tuple(() for _ in after), {}
            name = f"f{len(sizes)}"
            sizes[name] = size
            left[i].append(name)
            right[j].append(name)
            rest_i, rest_j = _divide(rest_i, size), _divide(rest_j, size)
    return tuple(map(tuple, left)), tuple(map(tuple, right)), sizes


def _common(a: Size, b: Size) -> Size | None:
    """The larger factor both can give up: one of them, when it divides the other."""
    if a == b:
        return a
    if _divides(a, b):
        return a
    return b if _divides(b, a) else None


def _divides(a: Size, b: Size) -> bool:
    """Whether a divides b for all B and S."""
    if isinstance(a, int) and isinstance(b, int):
        return b % a == 0
    quotient = b / a
    return getattr(quotient, "is_integer", False) is True or quotient == int_or_none(quotient)


def int_or_none(expr: object) -> int | None:
    return int(expr) if getattr(expr, "is_Integer", False) else None  # type: ignore[call-overload]


def _divide(a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    quotient = a / b
    return int(quotient) if getattr(quotient, "is_Integer", False) else quotient


def _permute(op: Op, inputs: list[Value]) -> Rule:
    (x,) = inputs
    rank = len(x.shape)
    order = list(range(rank))
    if op.target == "permute":
        order = [int(k) % rank for k in op.attr("dims")]
    else:
        a = int(op.attr("dim0", 0)) % rank
        b = int(op.attr("dim1", rank - 1)) % rank
        order[a], order[b] = order[b], order[a]
    dims = tuple((f"d{k}",) for k in range(rank))
    sizes = {f"d{k}": size for k, size in enumerate(x.shape)}
    return Rule((dims,), (tuple(dims[k] for k in order),), sizes, linear=True)


def _blocks(whole: Size, part: Size) -> int | None:
    """How many equal parts make the whole, when that is a number."""
    if whole == part:
        return 1
    if isinstance(whole, int) and isinstance(part, int) and part > 0 and whole % part == 0:
        return whole // part
    return None


def _sliced(op: Op, inputs: list[Value]) -> Rule:
    """slice and select-free backward: the sliced dim is blocks x length when it divides."""
    backward = op.target == "slice_backward"
    large, small = (
        (op.output.shape, inputs[0].shape)
        if backward
        else (
            inputs[0].shape,
            op.output.shape,
        )
    )
    rank = len(large)
    dim = int(op.attr("dim", 0)) % rank
    start = op.attr("start", 0) or 0
    blocks = _blocks(large[dim], small[dim])
    aligned = blocks is not None and isinstance(start, int) and small[dim] != 0
    if aligned and blocks != 1:
        aligned = isinstance(small[dim], int) and start % small[dim] == 0
    aligned = aligned and op.attr("step", 1) == 1
    sizes: dict[str, Size] = {f"d{k}": size for k, size in enumerate(small)}
    big = [(f"d{k}",) for k in range(rank)]
    little = [(f"d{k}",) for k in range(rank)]
    fixed = set()
    if aligned:
        sizes["blocks"] = blocks or 1
        big[dim] = ("blocks", f"d{dim}")  # type: ignore[assignment]
        fixed.add("blocks")
    else:
        big[dim] = little[dim] = ()  # type: ignore[assignment]
        sizes.pop(f"d{dim}")
    first, second = (tuple(little), tuple(big)) if backward else (tuple(big), tuple(little))
    return Rule((first,), (second,), sizes, fixed=frozenset(fixed), linear=True)


def _cat(op: Op, inputs: list[Value]) -> Rule:
    rank = len(op.output.shape)
    dim = int(op.attr("dim", 0)) % rank
    equal = all(v.shape == inputs[0].shape for v in inputs)
    sizes: dict[str, Size] = {f"d{k}": size for k, size in enumerate(inputs[0].shape)}
    part: list[tuple[str, ...]] = [(f"d{k}",) for k in range(rank)]
    whole = list(part)
    fixed = set()
    if equal:
        sizes["blocks"] = len(inputs)
        whole[dim] = ("blocks", f"d{dim}")
        fixed.add("blocks")
    else:
        part[dim] = whole[dim] = ()
        sizes.pop(f"d{dim}")
    return Rule((tuple(part),) * len(inputs), (tuple(whole),), sizes, fixed=frozenset(fixed))


def _lead(shape: Shape) -> list[str]:
    return [f"b{k}" for k in range(len(shape) - 1)]


def _rule(
    dims_in: list[list[str]],
    dims_out: list[list[str]],
    values: list[Value],
    outputs: tuple[Value, ...],
    reduce: list[dict[str, str]] | None = None,
    fixed: str = "",
) -> Rule:
    sizes: dict[str, Size] = {}
    for names, value in zip([*dims_in, *dims_out], [*values, *outputs], strict=True):
        sizes.update(zip(names, value.shape, strict=True))
    made = []
    for names in dims_out:
        made.append({f: "sum" for f in sizes if f not in names})
    return Rule(
        tuple(tuple((n,) for n in names) for names in dims_in),
        tuple(tuple((n,) for n in names) for names in dims_out),
        sizes,
        tuple(reduce if reduce is not None else made),
        frozenset(fixed.split()),
    )


def _linear(op: Op, inputs: list[Value]) -> Rule:
    x, w = inputs
    lead = _lead(x.shape)
    return _rule([[*lead, "i"], ["o", "i"]], [[*lead, "o"]], inputs, op.outputs, [{"i": "sum"}])


def _linear_input_grad(op: Op, inputs: list[Value]) -> Rule:
    lead = _lead(inputs[0].shape)
    return _rule([[*lead, "o"], ["o", "i"]], [[*lead, "i"]], inputs, op.outputs, [{"o": "sum"}])


def _linear_weight_grad(op: Op, inputs: list[Value]) -> Rule:
    lead = _lead(inputs[0].shape)
    reduce = [{n: "sum" for n in lead}]
    return _rule([[*lead, "o"], [*lead, "i"]], [["o", "i"]], inputs, op.outputs, reduce)


def _embedding(op: Op, inputs: list[Value]) -> Rule:
    lead = [f"b{k}" for k in range(len(inputs[0].shape))]
    return _rule([lead, ["v", "d"]], [[*lead, "d"]], inputs, op.outputs, [{"v": "sum"}])


def _embedding_weight_grad(op: Op, inputs: list[Value]) -> Rule:
    lead = [f"b{k}" for k in range(len(inputs[1].shape))]
    reduce = [{n: "sum" for n in lead}]
    return _rule([[*lead, "d"], lead], [["v", "d"]], inputs, op.outputs, reduce)


def _attention_dims(inputs: list[Value]) -> tuple[Dims, Dims, Dims, Dims, dict[str, Size]]:
    q, k, v = inputs
    group = _divide(q.shape[1], k.shape[1])
    sizes: dict[str, Size] = {"b": q.shape[0], "k": k.shape[1], "g": group, "s": q.shape[2]}
    sizes.update({"t": k.shape[2], "d": q.shape[3], "e": v.shape[3]})
    heads = ("k", "g")
    dims_q: Dims = (("b",), heads, ("s",), ("d",))
    dims_k: Dims = (("b",), ("k",), ("t",), ("d",))
    dims_v: Dims = (("b",), ("k",), ("t",), ("e",))
    dims_o: Dims = (("b",), heads, ("s",), ("e",))
    return dims_q, dims_k, dims_v, dims_o, sizes


_ATTENTION_FIXED = frozenset("stde")


def _attention(op: Op, inputs: list[Value]) -> Rule:
    q, k, v, o, sizes = _attention_dims(inputs)
    return Rule((q, k, v), (o, o[:3]), sizes, ({}, {}), _ATTENTION_FIXED, ordered=frozenset("s"))


def _attention_backward(op: Op, inputs: list[Value]) -> Rule:
    q, k, v, o, sizes = _attention_dims(inputs[1:4])
    shared = {"g": "sum", "s": "sum"}
    reduce: tuple[dict[str, str], ...] = ({}, shared, shared)
    dims_in = (o, q, k, v, o, o[:3])
    return Rule(dims_in, (q, k, v), sizes, reduce, _ATTENTION_FIXED, ordered=frozenset("s"))


def _cross_entropy(op: Op, inputs: list[Value]) -> Rule:
    lead = _lead(inputs[0].shape)
    reduce = [{"v": "lse"}, {"v": "sum"}, {}]
    dims_in = [[*lead, "i"], ["v", "i"], lead]
    made = [lead, lead, [*lead, "v"]][: len(op.outputs)]
    return _rule(dims_in, made, inputs, op.outputs, reduce[: len(made)], "i")


def _cross_entropy_backward(op: Op, inputs: list[Value]) -> Rule:
    lead = _lead(inputs[2].shape)
    dims_in = [lead, lead, [*lead, "i"], ["v", "i"], lead, lead, [*lead, "v"]][: len(inputs)]
    reduce = [{"v": "sum"}, {n: "sum" for n in lead}]
    return _rule(dims_in, [[*lead, "i"], ["v", "i"]], inputs, op.outputs, reduce, "i")


def _matmul(op: Op, inputs: list[Value]) -> Rule:
    a, b = inputs
    lead = [f"b{k}" for k in range(len(a.shape) - 2)]
    other = lead if len(b.shape) == len(a.shape) else []
    return _rule(
        [[*lead, "m", "k"], [*other, "k", "n"]], [[*lead, "m", "n"]], inputs, op.outputs,
        [{"k": "sum"}],
    )  # fmt: skip


def _softmax(op: Op, inputs: list[Value]) -> Rule:
    rank = len(op.output.shape)
    dim = int(op.attr("dim", -1)) % rank
    rule = _pointwise(op, inputs)
    return Rule(rule.inputs, rule.outputs, rule.sizes, fixed=frozenset({f"d{dim}"}))


RULES: dict[str, Callable[[Op, list[Value]], Rule]] = {
    **dict.fromkeys(POINTWISE, _pointwise),
    **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys(PERMUTES, _permute),
    **dict.fromkeys(SOURCES, _source),
    "expand": _expand,
    "sum": _reduction("sum"),
    "sum.dim_IntList": _reduction("sum"),
    "mean": _reduction(None),
    "mean.dim": _reduction(None),
    "amax": _reduction("max"),
    "slice.Tensor": _sliced,
    "slice_backward": _sliced,
    "cat": _cat,
    "mm": _matmul,
    "bmm": _matmul,
    "_softmax": _softmax,
    "mw.linear": _linear,
    "mw.linear_input_grad": _linear_input_grad,
    "mw.linear_weight_grad": _linear_weight_grad,
    "mw.embedding": _embedding,
    "mw.embedding_weight_grad": _embedding_weight_grad,
    "mw.attention": _attention,
    "mw.attention_backward": _attention_backward,
    "mw.linear_cross_entropy": _cross_entropy,
    "mw.linear_cross_entropy_backward": _cross_entropy_backward,
}

SEMANTIC = tuple(sorted(t.removeprefix("mw.") for t in RULES if t.startswith("mw.")))


# Costs that do not depend on a device.

MATMULS = frozenset("mw.linear mw.linear_input_grad mw.linear_weight_grad mm bmm".split())
# Ops whose kernel can add a weight's gradient to its buffer, with that output's position.
ADDING = {"mw.linear_weight_grad": 0, "mw.linear_cross_entropy_backward": 1}
# Ops that can do without their last operand, as they compute it again in passing: its position, and
# that of the output that it is, which exists where it is kept for them.
PASSING = {"mw.linear_cross_entropy_backward": 6}
PASSED = {"mw.linear_cross_entropy": 2}
FREE = VIEWS | PERMUTES | frozenset({"expand", "slice.Tensor"})


def added_where_made(graph: Graph, name: str) -> bool:
    """Whether the op that makes a parameter's gradient can add it, as nothing else reads it."""
    op = graph.producer.get(name)
    if op is None or op.target not in ADDING or op.outputs[ADDING[op.target]].name != name:
        return False
    return not graph.users[name] and graph.outputs.count(name) == 1


def passing(graph: Graph) -> frozenset[str]:
    """Values that exist where they are kept for backward, which does without where they are not."""
    return frozenset(v.name for op in graph.ops for v in _last(op.outputs, PASSED.get(op.target)))


def without_passing(graph: Graph, kept: Collection[str] = ()) -> Graph:
    """The graph without those of `passing` that are not kept."""
    gone = passing(graph).difference(kept)
    return replace(graph, ops=tuple(_without(op, gone) for op in graph.ops)) if gone else graph


def _without(op: Op, gone: frozenset[str]) -> Op:
    if gone.intersection(_last(op.inputs, PASSING.get(op.target))):
        return replace(op, inputs=op.inputs[:-1])
    if gone.intersection(v.name for v in _last(op.outputs, PASSED.get(op.target))):
        return replace(op, outputs=op.outputs[:-1])
    return op


def _last(items: tuple[Item, ...], position: int | None) -> tuple[Item, ...]:
    """The item at the last place, where it is that of `position`."""
    return () if position is None else items[position:]


def flops(op: Op, graph: Graph) -> Size:
    """Floating-point operations of the matrix units; 0 for bandwidth-bound ops.

    A matmul counts 2 m n k. Causal attention counts half the square: forward 2 matmuls, backward 5
    (FlashAttention, Dao 2022, section 3.1); cross-entropy's backward recomputes logits not given.
    """
    shapes = [graph.values[name].shape for name in op.inputs if name]
    if op.target in ("mw.linear", "mw.linear_input_grad"):
        return 2 * num_elements(shapes[0]) * num_elements(shapes[1]) / shapes[0][-1]
    if op.target == "mw.linear_weight_grad":
        return 2 * num_elements(shapes[0]) * shapes[1][-1]
    if op.target in ("mm", "bmm"):
        return 2 * num_elements(shapes[0]) * shapes[1][-1]
    if op.target == "mw.attention":
        return 2 * attention_pairs(op, shapes[0]) * 2 * shapes[0][3]
    if op.target == "mw.attention_backward":
        return 5 * attention_pairs(op, shapes[1]) * 2 * shapes[1][3]
    if op.target == "mw.linear_cross_entropy":
        return 2 * num_elements(shapes[0]) * shapes[1][0]
    if op.target == "mw.linear_cross_entropy_backward":
        return (4 if len(shapes) == 7 else 6) * num_elements(shapes[2]) * shapes[3][0]
    return 0


def attention_pairs(op: Op, q: Shape) -> Size:
    """Query-key pairs over batch and heads that the mask leaves, window and causality counted."""
    batch, heads, length, _ = q
    window = op.attr("window", 0)
    if window:
        return batch * heads * length * window
    pairs = batch * heads * length * length
    return pairs / 2 if op.attr("causal", True) else pairs
