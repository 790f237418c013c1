"""The registry: every definition by name, and the default one of an op that nobody registered."""

from functools import lru_cache

from ..graph import Op
from . import (
    attention,
    collective,
    composite,
    dropout,
    experts,
    indexing,
    loss,
    matmul,
    pointwise,
    recurrence,
    reduction,
    router_bias,
    router_load,
    source,
    view,
)
from .call import PICKS_ROWS
from .definition import OpDef

_FILES = (
    pointwise,
    dropout,
    source,
    view,
    reduction,
    router_bias,
    router_load,
    indexing,
    matmul,
    experts,
    attention,
    recurrence,
    loss,
    collective,
    composite,
)


def _collected() -> dict[str, OpDef]:
    found: dict[str, OpDef] = {}
    for file in _FILES:
        for made in file.DEFINITIONS:
            assert made.name not in found, f"{made.name} is defined twice"
            found[made.name] = made
    return found


DEFINITIONS: dict[str, OpDef] = _collected()


def definition(op: Op) -> OpDef:
    """The op's definition, or a replicated call's where nobody registered the op."""
    return DEFINITIONS.get(op.target) or _replicated_call(op.target)


def named(target: str) -> OpDef:
    """The definition of an op name."""
    return DEFINITIONS.get(target) or _replicated_call(target)


@lru_cache(maxsize=1024)
def _replicated_call(target: str) -> OpDef:
    # Dear: nobody knows what it costs.
    return OpDef(target, "call", dear=True, reads_table=target in PICKS_ROWS)
