"""Pointwise ops: every dim of the output is a factor, operands are broadcast to it."""

from dataclasses import replace

from ..graph import Op, Value
from .definition import OpDef, Rule
from .factors import broadcast, same_dims


def pointwise_rule(op: Op, inputs: list[Value]) -> Rule:
    out = op.output.shape
    dims, sizes = same_dims(out)
    return Rule(tuple(broadcast(v.shape, out) for v in inputs), (dims,), sizes)


def _linear(op: Op, inputs: list[Value]) -> Rule:
    return replace(pointwise_rule(op, inputs), linear=True)


def _sum(op: Op, inputs: list[Value]) -> Rule:
    """Two tensors of one shape: the sum of partial sums is a partial sum."""
    both = len(inputs) == 2 and all(v.shape == op.output.shape for v in inputs)
    return replace(pointwise_rule(op, inputs), linear=both)


# Called by a name of its own; every other one as torch.ops.aten.
_CALLS = {
    "rsqrt": "torch.rsqrt",
    "tanh": "torch.tanh",
    "sin": "torch.sin",
    "cos": "torch.cos",
    "exp": "torch.exp",
    "sigmoid": "torch.sigmoid",
    "silu": "F.silu",
    "relu": "F.relu",
    "gelu": "F.gelu",
    "ones_like": "torch.ones_like",
    "zeros_like": "torch.zeros_like",
    "where.self": "torch.where",
    "where.ScalarOther": "torch.where",
    "pow.Tensor_Scalar": "torch.pow",
    "pow.Scalar": "torch.pow",
}
_PLAIN = """
    mul.Tensor div.Tensor rsub.Scalar add.Scalar sub.Scalar abs exp log sqrt rsqrt reciprocal
    pow.Tensor_Scalar pow.Scalar sin cos tanh sigmoid relu silu gelu where.self where.ScalarOther
    eq.Scalar ne.Scalar gt.Scalar lt.Scalar ge.Scalar le.Scalar eq.Tensor ne.Tensor gt.Tensor
    lt.Tensor le.Tensor ge.Tensor logical_not logical_and bitwise_not bitwise_and.Tensor
    bitwise_or.Tensor maximum minimum clamp clamp_min ones_like zeros_like fill.Scalar
    masked_fill.Scalar sign softplus leaky_relu mish hardswish log1p expm1 floor ceil
    logical_or clamp_max pow.Tensor_Tensor
""".split()
_BACKWARD = """
    silu_backward gelu_backward tanh_backward sigmoid_backward threshold_backward softplus_backward
    leaky_relu_backward mish_backward hardswish_backward
""".split()

DEFINITIONS = (
    *(OpDef(name, "pointwise", pointwise_rule, call=_CALLS.get(name, "")) for name in _PLAIN),
    *(OpDef(name, "pointwise", pointwise_rule, backward=True) for name in _BACKWARD),
    *(OpDef(name, "pointwise", _sum) for name in ("add.Tensor", "sub.Tensor")),
    *(OpDef(name, "pointwise", _linear) for name in ("neg", "mul.Scalar", "div.Scalar")),
    *(
        OpDef(name, "pointwise", pointwise_rule, vanishes="same dtype", cast=True)
        for name in ("_to_copy", "to.dtype")
    ),
    *(OpDef(name, "pointwise", pointwise_rule, vanishes="always") for name in ("clone", "alias")),
    OpDef("detach", "pointwise", pointwise_rule, vanishes="in a joint"),
)
