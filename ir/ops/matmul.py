"""Matrix products. A matmul counts 2 m n k flops."""

from ..graph import Op, Value
from ..sizes import Shape, Size, num_elements
from .definition import OpDef, Rule
from .factors import broadcast, leading, rule_by_names, same_dims


def _linear(op: Op, inputs: list[Value]) -> Rule:
    lead = leading(inputs[0].shape)
    dims = [[*lead, "i"], ["o", "i"]]
    return rule_by_names(dims, [[*lead, "o"]], inputs, op.outputs, [{"i": "sum"}])


def _linear_input_grad(op: Op, inputs: list[Value]) -> Rule:
    lead = leading(inputs[0].shape)
    dims = [[*lead, "o"], ["o", "i"]]
    return rule_by_names(dims, [[*lead, "i"]], inputs, op.outputs, [{"o": "sum"}])


def _linear_weight_grad(op: Op, inputs: list[Value]) -> Rule:
    lead = leading(inputs[0].shape)
    reduce = [{n: "sum" for n in lead}]
    dims = [[*lead, "o"], [*lead, "i"]]
    return rule_by_names(dims, [["o", "i"]], inputs, op.outputs, reduce)


def _matmul(op: Op, inputs: list[Value]) -> Rule:
    """Leading dims are broadcast; an operand of one dim has no rows, or no columns."""
    (a, b), out = (value.shape for value in inputs), op.outputs[0].shape
    rows = {"m": a[-2]} if len(a) > 1 else {}
    columns = {"n": b[-1]} if len(b) > 1 else {}
    lead = out[: len(out) - len(rows) - len(columns)]
    lead_dims, sizes = same_dims(lead)
    m, k, n = [(name,) for name in rows], ("k",), [(name,) for name in columns]
    return Rule(
        ((*broadcast(a[:-2], lead), *m, k), (*broadcast(b[:-2], lead), k, *n)),
        ((*lead_dims, *m, *n),),
        sizes | rows | columns | {"k": a[-1]},
        ({"k": "sum"},),
    )


def _by_rows(op: Op, shapes: list[Shape]) -> Size:
    return 2 * num_elements(shapes[0]) * shapes[1][0]


def _by_columns(op: Op, shapes: list[Shape]) -> Size:
    return 2 * num_elements(shapes[0]) * shapes[1][-1]


def _by_sums(op: Op, shapes: list[Shape]) -> Size:
    """Each element of the output is a sum over the last dim of the first operand."""
    return 2 * num_elements(op.outputs[0].shape) * shapes[0][-1]


DEFINITIONS = (
    OpDef(
        "mw.linear",
        "matmul",
        _linear,
        _by_rows,
        call="kernels.linear",
        deferred=True,
        dear=True,
        matmul_weight=True,
        contracts=0,
    ),
    OpDef(
        "mw.linear_input_grad",
        "matmul",
        _linear_input_grad,
        _by_columns,
        call="kernels.linear_input_grad",
        backward=True,
        deferred=True,
        contracts=0,
    ),
    OpDef(
        "mw.linear_weight_grad",
        "matmul",
        _linear_weight_grad,
        _by_columns,
        call="kernels.linear_weight_grad",
        backward=True,
        deferred=True,
        adds=0,
    ),
    *(
        OpDef(
            name,
            "matmul",
            _matmul,
            _by_sums,
            deferred=True,
            dear=True,
            matmul_weight=True,
            contracts=0,
        )
        for name in ("mm", "bmm", "matmul")
    ),
)
