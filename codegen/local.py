"""Local shapes and their text: what one rank holds of a value."""

import builtins
import keyword
import math
import re

from meshwright.ir.graph import Graph, Value
from meshwright.ir.mesh import ROLES, TENSOR, Mesh
from meshwright.ir.placement import Placement, local_shape, replicated
from meshwright.ir.plan import Piece, Plan
from meshwright.ir.sizes import Shape, Size, evaluate, format_size, number_of


def group_name(axis: str) -> str:
    """Return the name of the process group along an axis in emitted text; `tp.tq` means both."""
    return axis.upper().replace(".", "_")


def rank_name(axis: str) -> str:
    """Return the name of this rank's coordinate along an axis in emitted text."""
    return f"{group_name(axis)}_RANK"


# Names that a stage's file gives meaning to and values must not hide.
_RESERVED = {"torch", "F", "kernels", "collectives", "mesh", "Instance", "Piece", "B", "S"}
_RESERVED |= {"DEVICE", "PIECES", "INSTANCES", "ENTRY", "EXIT", "constants"}
_AXES = (*ROLES, ".".join(name for name, role in ROLES.items() if role == TENSOR))
_RESERVED |= {text for name in _AXES for text in (group_name(name), rank_name(name))}
_RESERVED |= {"params", "saved", "grads", "handed"}
_RESERVED |= set(dir(builtins))


_SUM = re.compile(r"[BS\d+*-]+")
_ALONE = re.compile(r"-?[\w.]+")


def identifier(name: str) -> str:
    """A value's name in emitted Python; two names are one only where a dot is an underscore."""
    text = name.replace(".", "_")
    text = f"_{text}" if text.lstrip("_")[:1].isdigit() else text
    bare = text.rstrip("_")
    return f"{text}_" if keyword.iskeyword(bare) or bare in _RESERVED else text


def as_term(text: str) -> str:
    """The text of a size beside an operator: in brackets where it would be taken apart."""
    return text if _ALONE.fullmatch(text) else f"({text})"


class Locals:
    """Local shapes of one graph under a plan's placements."""

    def __init__(self, graph: Graph, placements: dict[str, Placement], plan: Plan) -> None:
        self.graph, self.placements, self.plan = graph, placements, plan
        self.mesh: Mesh = plan.mesh

    @classmethod
    def of(cls, piece: Piece, plan: Plan) -> "Locals":
        return cls(piece.graph, piece.placements, plan)

    def placement(self, name: str) -> Placement:
        value = self.graph.values[name]
        return self.placements.get(name, replicated(len(value.shape)))

    def shape(self, value: Value) -> Shape:
        return local_shape(value.shape, self.placement(value.name), self.mesh)

    def shape_text(self, value: Value) -> str:
        parts = [self.size_text(s) for s in self.shape(value)]
        return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"

    def size_text(self, size: Size) -> str:
        """Return a size as text: over B and S where it adds and multiplies them, else a number."""
        text = format_size(size)
        return text if _SUM.fullmatch(text) else str(evaluate(size, self.plan.sizes))

    def number_text(self, size: Size) -> str:
        """Return what is calculated from sizes as text; it need not be an integer."""
        text = format_size(size)
        return text if _SUM.fullmatch(text) else repr(number_of(size, self.plan.sizes))

    def start_text(self, name: str, dim: int) -> str:
        """The first element of a dim, cut in shards of `outer` 1, that a rank holds."""
        shards = self.placement(name).dims[dim]
        if not shards:
            return "0"
        place = rank_name(shards[0].axis)
        for shard in shards[1:]:
            place = f"({place} * {self.mesh.size(shard.axis)} + {rank_name(shard.axis)})"
        return f"{place} * {self._chunk_text(name, dim)}"

    def tail_text(self, name: str, dim: int) -> str:
        """The first element of the second chunk that a rank holds of a mirrored dim, else ""."""
        shards = self.placement(name).dims[dim]
        if not any(shard.mirrored for shard in shards):
            return ""
        (shard,) = shards
        last = 2 * self.mesh.size(shard.axis) - 1
        return f"({last} - {rank_name(shard.axis)}) * {self._chunk_text(name, dim)}"

    def _chunk_text(self, name: str, dim: int) -> str:
        """The elements of a dim that lie side by side in a rank's one shard."""
        shards, size = self.placement(name).dims[dim], self.shape(self.graph.values[name])[dim]
        mirrored = any(shard.mirrored for shard in shards)
        return as_term(self.size_text(size / 2 if mirrored else size))

    def ranks(self, axis: str) -> int:
        """Ranks along an axis, or along several together."""
        return math.prod(self.mesh.size(name) for name in axis.split("."))

    def cut(self, name: str, dim: int) -> int:
        """Return over how many ranks a dim is cut."""
        placement = self.placement(name)
        return math.prod(self.mesh.size(shard.axis) for shard in placement.dims[dim])
