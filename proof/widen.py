"""A captured model in float64: the same ops on wider values, of which casts do nothing."""

import base64
from dataclasses import replace

from meshwright.ir.dtypes import FLOATS, TORCH_NAMES
from meshwright.ir.graph import Attr, Constant, Graph, Op, Value
from meshwright.ir.ops.call import DTYPES
from meshwright.ir.traced import Traced
from meshwright.runtime.training.program import decode

_WIDE = "f64"


def widened(traced: Traced) -> Traced:
    """Return a captured model in float64."""
    segmented = traced.segmented
    return replace(
        traced,
        dtype=_WIDE,
        graph=_graph(traced.graph),
        segmented=replace(segmented, context=_graph(segmented.context)),
        joints={name: _graph(graph) for name, graph in traced.joints.items()},
        constants=tuple(map(_constant, traced.constants)),
    )


def _graph(graph: Graph) -> Graph:
    inputs = tuple(replace(i, value=_value(i.value)) for i in graph.inputs)
    return Graph(graph.name, inputs, tuple(map(_op, graph.ops)), graph.outputs)


def _value(value: Value) -> Value:
    return replace(value, dtype=_dtype(value.dtype))


def _dtype(name: str) -> str:
    return _WIDE if name in FLOATS else name


def _op(op: Op) -> Op:
    named = ("dtype", *op.attr(DTYPES, ()))
    attrs = tuple((key, _attr(value) if key in named else value) for key, value in op.attrs)
    return replace(op, outputs=tuple(map(_value, op.outputs)), attrs=attrs)


def _attr(value: Attr) -> Attr:
    return _dtype(value) if isinstance(value, str) else value


def _constant(constant: Constant) -> Constant:
    digest, dtype, shape, data = constant
    if dtype not in FLOATS:
        return constant
    values = decode(TORCH_NAMES[dtype], (-1,), data).double()
    return digest, _WIDE, shape, base64.b64encode(values.numpy().tobytes()).decode()
