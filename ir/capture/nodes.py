"""What is asked of an fx node of an export: its op, its line, whether it writes or draws."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..errors import CaptureError
from ..ops.registry import named
from .calls import Attrs
from .lines import line_of

CAST = "to.dtype"  # stands for every overload of `to`: it is the output's dtype that matters
# What torch.vmap calls first, which a user does not know.
_VMAP, _OF_VMAP = "torch.vmap", ("lazy_load_decompositions", "_vmap_increment_nesting")
NO_OP = (
    "is no op that a graph can hold, but a transformation of functions; write what it computes in "
    "tensor ops"
)
_RATES = ("p", "dropout_p")  # what torch calls the probability that an element falls


def target_name(target: Any) -> str:
    """The registry's name of an overload: `mul.Tensor`, `silu`, `mw.linear`, `ns::op` elsewhere."""
    namespace, _, base = target._schema.name.partition("::")
    overload = target._overloadname
    base = base if overload == "default" else f"{base}.{overload}"
    if namespace == "aten":
        return CAST if base.startswith("to.") else base
    return f"mw.{base}" if namespace == "meshwright" else f"{namespace}::{base}"


def _plain_name(target: Any) -> str:
    name = getattr(target, "__name__", str(target))
    return _VMAP if name in _OF_VMAP else name


def where(node: Node) -> str:
    target = node.target
    named = target_name(target) if hasattr(target, "_schema") else _plain_name(target)
    return f"{named} at {line_of(node) or 'an unknown line'}"


def writes(node: Node) -> bool:
    """Return whether an op changes an operand: a graph has values, not memory."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


@dataclass(frozen=True)
class Drawn:
    """A call that draws at random: the op that stands for it, the nodes of its operands, None for
    an absent one, the probability, and its other attributes."""

    target: str
    operands: tuple[Node | None, ...]
    p: float
    attrs: Attrs


def drawn_by(node: Node) -> Drawn | None:
    """Return what a call draws; None where that is nothing, as at p = 0 or outside of training."""
    target = named(target_name(node.target)).drawn_as
    if not target:
        return None
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    names = [a.name for a in arguments]
    given = {n: None for n in names} | dict(zip(names, node.args, strict=False)) | node.kwargs
    rate = given.pop(next(name for name in _RATES if name in given))
    if given.pop("train", True) is False or not rate:
        return None
    operands = tuple(given.pop(a.name) for a in arguments if "Tensor" in str(a.type))
    return Drawn(target, operands, float(rate), [(k, v) for k, v in given.items() if v is not None])


def draws_otherwise(node: Node) -> bool:
    """Return whether a call draws at random what no dropout does, as torch's own tag says."""
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags or named(target_name(node.target)).drawn_as:
        return False
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
    trains = given.get("train", given.get("training", True))
    return bool(trains) and given.get("p", given.get("dropout", 1.0)) != 0.0


def own_draws(where: str) -> CaptureError:
    """Return what to say of an op that is given a generator."""
    return CaptureError(
        f"{where} draws from a torch.Generator of its own; a program draws nothing in forward: "
        "draw when the module is built, with a seed, into a buffer"
    )


def draws_of_its_own(node: Node) -> bool:
    """Return whether an op is given a generator."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
    return any(given.get(a.name) for a in arguments if "Generator" in str(a.type))
