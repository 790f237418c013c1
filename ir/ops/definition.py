"""The definition of an op: all that the rooms ask of it. Nobody else keeps a set of op names.

A factor rule names, for every operand and output, the factors of each dim, major to minor (as in
Shardy's sharding rules). `mw.linear`: x [b s i], w [o i] -> [b s o] with `i` contracting. One rule
answers which placements are legal (a factor sharded wherever it appears), what is partial after
sharding a factor that an output lacks, and what the local shapes are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from ..graph import Op, Value
from ..sizes import Shape, Size
from .implementation import TORCH, Implementation

Dims = tuple[tuple[str, ...], ...]  # per dim its factors, major to minor


@dataclass(frozen=True)
class Rule:
    """Factors of one op.

    sizes: of each factor. reduce: for each output, {factor: "sum"|"max"|"lse"} over factors that
    it lacks. fixed: factors that must stay whole. linear: partial sums pass through. ordered: fixed
    factors that a context axis may cut, as the op is told where its shard begins. reach: triples
    (queries, keys, count): a shard of the factor `queries` reads the shard of the factor `keys` at
    the same place, and the `count` elements before that shard.
    """

    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    sizes: dict[str, Size]
    reduce: tuple[dict[str, str], ...] = ()
    fixed: frozenset[str] = frozenset()
    linear: bool = False
    ordered: frozenset[str] = frozenset()
    reach: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True)
class Tokens:
    """What a kernel takes on a GPU for each token of an operand [B, S, ...], one after the other.

    operand: its position. us: of a token.
    """

    operand: int
    us: float


FactorRule: TypeAlias = Callable[[Op, list[Value]], Rule]  # of the present operands
Flops: TypeAlias = Callable[[Op, list[Shape]], Size]  # of the present operands' shapes
# Bytes, of an op, its present operands, and the elements that a rank holds of each.
Passes: TypeAlias = Callable[[Op, list[Value], list[float]], float]
# Bytes, of the same without the op, on a type of device, such as "cuda".
Workspace: TypeAlias = Callable[[Op, list[Value], list[float], str], float]

Kind: TypeAlias = Literal[
    "view",  # another shape over the same storage: free
    "source",  # made from nothing, inside the kernel that reads it: free
    "pointwise",  # fuses into its neighbours
    "reduction",  # fuses into its neighbours
    "movement",  # copies parts into place; fuses into its neighbours
    "kernel",  # a kernel of its own, bound by memory
    "lookup",  # rows of a table, or their gradient
    "matmul",
    "attention",
    "loss",  # the head's matmul with the cross-entropy behind it
    "collective",  # a redistribution that the plan writes out
    "composite",  # expanded into others when the joint graph is traced
    "call",  # not registered: a replicated call
]
Lane: TypeAlias = Literal["matmul", "attention", "pointwise", "collective"]
# Where capture leaves an op out because its result is its first operand. In a joint graph autograd
# has already seen what stops a gradient.
Vanishes: TypeAlias = Literal["never", "always", "same dtype", "same shape", "in a joint"]

_FUSED = ("pointwise", "reduction", "movement")
_LANES: dict[str, Lane] = {
    "matmul": "matmul",
    "loss": "matmul",
    "attention": "attention",
    "collective": "collective",
}


def no_flops(op: Op, shapes: list[Shape]) -> Size:
    """Return 0: the op is bound by memory."""
    return 0


@dataclass(frozen=True)
class OpDef:
    """One op of the registry.

    call: what emitted text calls; "" for the torch operator itself, by its full name.
    output_names: endings of the names of several outputs. vanishes: where capture leaves it out.
    cast, norm: what torch's op is, for the cuts of segments.
    drawn_as: the op that capture makes of it where it draws at random; "" where it does not.
    scores: holds every score of an attention.
    numbered: its attribute `number` says which draw of its segment it makes.
    sums_dims, averages_dims: a sum, a mean over named dims. reshapes: gives the elements another
    shape, `size`.
    backward: only gradients are made by it.
    deferred: may wait for W, the half of a backward that makes weight gradients.
    dear: the rule `cheap` does not compute it again.
    adds: position of the output that the kernel can add to a weight's gradient buffer.
    recomputed_operand: position of the last operand, which the op does without by computing it
    again in passing. passing_output: position of the last output, which exists where it is kept
    for such an op.
    matmul_weight: multiplies by a parameter that a plan may have to shard.
    reads_table: an operand is the embedding table or the head.
    counts_choices: makes of indices of experts what a router's bias gets for a gradient.
    gathers: position of a table of which the op reads as many bytes as it gives.
    scatters: adds rows to a table, and is not priced for the whole of it.
    queries: position of the operand [B, H, S, D] whose sizes give the attention rate.
    workspace: memory that the kernel takes for itself; None where it takes none.
    passes: bytes that it reads and writes beside its matmuls, one after the other.
    tokens: what it takes for each token; None where tokens go side by side.
    rate_share: of the rate of one large matmul, what those of its kernels reach.
    contracts: position of the operand whose last dim its matmul contracts; None where rows are
    contracted, or there is no matmul.
    implementations: what the kernel chooses from, the first that takes the op; the last takes all.
    """

    name: str
    kind: Kind
    factors: FactorRule | None = None
    flops: Flops = no_flops
    call: str = ""
    output_names: tuple[str, ...] = ()
    vanishes: Vanishes = "never"
    cast: bool = False
    norm: bool = False
    drawn_as: str = ""
    numbered: bool = False
    scores: bool = False
    sums_dims: bool = False
    averages_dims: bool = False
    reshapes: bool = False
    backward: bool = False
    deferred: bool = False
    dear: bool = False
    adds: int | None = None
    recomputed_operand: int | None = None
    passing_output: int | None = None
    matmul_weight: bool = False
    reads_table: bool = False
    counts_choices: bool = False
    gathers: int | None = None
    scatters: bool = False
    queries: int | None = None
    workspace: Workspace | None = None
    passes: Passes | None = None
    tokens: Tokens | None = None
    rate_share: float = 1.0
    contracts: int | None = None
    implementations: tuple[Implementation, ...] = (TORCH,)

    @cached_property
    def free(self) -> bool:
        """Return whether it is a view of its first operand."""
        return self.kind == "view"

    @cached_property
    def source(self) -> bool:
        """Return whether it makes its output from nothing."""
        return self.kind == "source"

    @cached_property
    def fused(self) -> bool:
        """Return whether it runs inside the kernel of its neighbours."""
        return self.kind in _FUSED

    @cached_property
    def collective(self) -> bool:
        return self.kind == "collective"

    @cached_property
    def lane(self) -> Lane:
        """Return which unit of the device it keeps busy."""
        return _LANES.get(self.kind, "pointwise")

    @cached_property
    def registered(self) -> bool:
        return self.kind != "call"
