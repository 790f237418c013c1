"""Attention: q [B, H, S, D], k and v [B, K, S, D]; heads are groups of queries over K.

Flops count what the mask leaves, causal attention half the square: forward 2 matmuls, backward 5
(FlashAttention, Dao 2022, section 3.1).
"""

from ..graph import Op, Value
from ..sizes import Shape, Size, smaller
from .definition import Dims, OpDef, Rule
from .factors import divided
from .implementation import Implementation, ScoresWork

_FIXED = frozenset("stde")
_ORDERED = frozenset("s")  # queries of a shard see the keys up to their own places


def _dims(inputs: list[Value]) -> tuple[Dims, Dims, Dims, Dims, dict[str, Size]]:
    q, k, v = inputs
    group = divided(q.shape[1], k.shape[1])
    sizes: dict[str, Size] = {"b": q.shape[0], "k": k.shape[1], "g": group, "s": q.shape[2]}
    sizes.update({"t": k.shape[2], "d": q.shape[3], "e": v.shape[3]})
    heads = ("k", "g")
    dims_q: Dims = (("b",), heads, ("s",), ("d",))
    dims_k: Dims = (("b",), ("k",), ("t",), ("d",))
    dims_v: Dims = (("b",), ("k",), ("t",), ("e",))
    dims_o: Dims = (("b",), heads, ("s",), ("e",))
    return dims_q, dims_k, dims_v, dims_o, sizes


def _forward(op: Op, inputs: list[Value]) -> Rule:
    q, k, v, o, sizes = _dims(inputs)
    reach = _reach(op, sizes)
    return Rule((q, k, v), (o, o[:3]), sizes, ({}, {}), _FIXED, ordered=_ORDERED, reach=reach)


def _backward(op: Op, inputs: list[Value]) -> Rule:
    q, k, v, o, sizes = _dims(inputs[1:4])
    shared = {"g": "sum", "s": "sum"}
    reduce: tuple[dict[str, str], ...] = ({}, shared, shared)
    operands, reach = (o, q, k, v, o, o[:3]), _reach(op, sizes)
    return Rule(operands, (q, k, v), sizes, reduce, _FIXED, ordered=_ORDERED, reach=reach)


def _reach(op: Op, sizes: dict[str, Size]) -> tuple[tuple[str, str, int], ...]:
    """Keys that a causal window of w sees: its own and w - 1 before."""
    window = int(op.attr("window", 0) or 0)
    bounded = window > 0 and op.attr("causal", True) and sizes["s"] == sizes["t"]
    return (("s", "t", window - 1),) if bounded else ()


def _forward_flops(op: Op, shapes: list[Shape]) -> Size:
    return 2 * attention_pairs(op, shapes[0], shapes[1]) * 2 * shapes[0][3]


def _backward_flops(op: Op, shapes: list[Shape]) -> Size:
    return 5 * attention_pairs(op, shapes[1], shapes[2]) * 2 * shapes[1][3]


def attention_pairs(op: Op, q: Shape, k: Shape) -> Size:
    """Query-key pairs over batch and heads that the mask leaves, window and causality counted."""
    batch, heads, length, _ = q
    if not op.attr("causal", True):
        return batch * heads * length * k[2]
    window = int(op.attr("window", 0) or 0)
    seen = smaller(window, length) if window else length
    return batch * heads * seen * (2 * length - seen) / 2


def _plain(op: Op, q: tuple[int, ...]) -> bool:
    """Whether all of the past is seen, or all keys, by scores as they are."""
    window, causal = op.attr("window", 0), op.attr("causal", True)
    unbounded = window == 0 or (causal and window >= q[2])
    return op.attr("softcap", 0.0) == 0.0 and unbounded


def _implementations(queries: int, scores: ScoresWork) -> tuple[Implementation, ...]:
    """The backends of runtime/engine/kernels/attention.py; queries: position of that operand.
    scores: what the reference takes for one."""

    def cudnn(op: Op, sizes: list[tuple[int, ...]]) -> bool:
        _, _, positions, head_dim = q = sizes[queries]
        return _plain(op, q) and head_dim % 8 == 0 and head_dim <= 128 and positions > 1

    def triton(op: Op, sizes: list[tuple[int, ...]]) -> bool:
        *_, head_dim = sizes[queries]
        return head_dim <= 256 and sizes[queries + 2][3] == head_dim

    def cpu_flash(op: Op, sizes: list[tuple[int, ...]]) -> bool:
        return _plain(op, sizes[queries]) and sizes[queries + 2][3] == sizes[queries][3]

    return (
        Implementation("cudnn", ("cuda",), ("bf16", "f16"), cudnn),
        Implementation("triton", ("cuda",), ("bf16", "f16"), triton),
        Implementation("cpu_flash", ("cpu",), ("f32", "bf16", "f16"), cpu_flash),
        Implementation("reference", scores=scores),
    )


# Of the reference, whole squares: 2 and 5 matmuls; the passes over scores that Inductor leaves.
_SCORES = ScoresWork(flops=4, moved=6, held=2)
_SCORES_BACKWARD = ScoresWork(flops=10, moved=10, held=3)

DEFINITIONS = (
    OpDef(
        "mw.attention",
        "attention",
        _forward,
        _forward_flops,
        call="kernels.attention",
        output_names=("o", "lse"),
        dear=True,
        queries=0,
        implementations=_implementations(0, _SCORES),
    ),
    OpDef(
        "mw.attention_backward",
        "attention",
        _backward,
        _backward_flops,
        call="kernels.attention_backward",
        output_names=("dq", "dk", "dv"),
        backward=True,
        queries=1,
        implementations=_implementations(1, _SCORES_BACKWARD),
    ),
)
