"""Ops that torch or capture expands into others; none is left where the joint graph is traced.

A `composite` is expanded by a function of ir/capture, the same on every device. The others are
torch's own composites, named here for what capture asks of them.
"""

from .definition import OpDef

_EXPANDED = """
    linear addmm baddbmm embedding split.Tensor split.sizes split_with_sizes chunk unbind.int
    cumprod
""".split()

DEFINITIONS = (
    *(OpDef(name, "composite") for name in _EXPANDED),
    OpDef("scaled_dot_product_attention", "composite", drawn_as="drawn_attention"),
    # With dropout of the weights, and of whole channels.
    OpDef("drawn_attention", "composite", numbered=True, scores=True),
    OpDef("drawn_channels", "composite", numbered=True),
    OpDef("mw.sink_attention", "composite"),
    # One op here, but its parts read their input several times.
    *(OpDef(name, "composite", norm=True) for name in ("layer_norm", "rms_norm", "group_norm")),
    # What capture leaves out or refuses; where one stays it is a call that torch expands.
    *(OpDef(name, "call", vanishes="always") for name in ("contiguous", "lift_fresh_copy")),
    OpDef("dropout", "call", vanishes="always", drawn_as="mw.dropout"),
    OpDef("feature_dropout", "call", vanishes="always", drawn_as="drawn_channels"),
    OpDef("type_as", "call", vanishes="same dtype"),
    OpDef("expand_as", "call", vanishes="same shape"),
)
