"""Recurrences over the sequence: q k [B, S, H, K], v [B, S, H, V], a state [K, V] of each head.

The kernel goes through the tokens one by one. It takes time for each, and for its states, which
are float32 at least. Readings of four shapes on an H200, 2026-11-30 (benchmarks/README.md), say how
much: where states are small, tokens take most of it.
"""

from ..graph import Op, Value
from ..sizes import Shape, Size, num_elements
from .definition import OpDef, Passes, Rule, Tokens
from .factors import rule_by_names

_HEADS = ["b", "s", "h"]
_KEYS, _VALUES = [*_HEADS, "k"], [*_HEADS, "v"]
_FIXED = "s k"
_CHUNK = 32  # tokens whose states backward makes again at once (runtime/engine/kernels)
_ELEMENTS = 2048  # of a state that one program holds; blocks of columns are summed in float32


def _operands(g: Value) -> list[list[str]]:
    return [_KEYS, _KEYS, _VALUES, _HEADS if len(g.shape) == 3 else _KEYS, _HEADS]


def _forward(op: Op, inputs: list[Value]) -> Rule:
    return rule_by_names(_operands(inputs[3]), [_VALUES], inputs, op.outputs, [{}], _FIXED)


def _backward(op: Op, inputs: list[Value]) -> Rule:
    """What has no column of the state in it is summed over shards of the columns."""
    dims = _operands(inputs[4])
    reduce: list[dict[str, str]] = [{} if names == _VALUES else {"v": "sum"} for names in dims]
    return rule_by_names([_VALUES, *dims], dims, inputs, op.outputs, reduce, _FIXED)


def _flops(times: int, first: int) -> Size:
    """`times` products of a row with each state; first: position of q."""

    def count(op: Op, shapes: list[Shape]) -> Size:
        return 2 * times * num_elements(shapes[first]) * shapes[first + 2][3]

    return count


def _held(op: Op, values: list[Value], elements: list[float], device: str) -> float:
    """Bytes of the states that backward keeps: at the beginning of chunks, and of one chunk, half
    of those at 2,048 tokens; and on a GPU of the gradients of q, k, g and beta by blocks of
    columns, where there are several."""
    _, q, k, _, g, beta = elements
    rows, columns = float(values[2].shape[3]), float(values[3].shape[3])
    states = 1.5 * k * columns / _CHUNK * (8 if values[2].dtype == "f64" else 4)
    parts = rows * columns / _ELEMENTS if device == "cuda" else 0.0
    return states + (4 * parts * (q + k + g + beta) if parts > 1 else 0.0)


def _states(times: float, first: int) -> Passes:
    """Bytes of reading and writing each state so many times a token."""

    def moved(op: Op, inputs: list[Value], elements: list[float]) -> float:
        columns = inputs[first + 2].shape[3]
        wide = 8 if inputs[first].dtype == "f64" else 4
        return 2.0 * times * elements[first] * float(columns) * wide

    return moved


DEFINITIONS = (
    OpDef(
        "mw.recurrence",
        "kernel",
        _forward,
        _flops(3, 0),
        call="kernels.recurrence",
        dear=True,
        passes=_states(0.2, 0),
        tokens=Tokens(2, 1.1),
    ),
    OpDef(
        "mw.recurrence_backward",
        "kernel",
        _backward,
        _flops(9, 1),
        call="kernels.recurrence_backward",
        output_names=("dq", "dk", "dv", "dg", "dbeta"),
        backward=True,
        passes=_states(1.8, 1),
        tokens=Tokens(3, 2.4),
        workspace=_held,
    ),
)
