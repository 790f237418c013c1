"""The program's data as the runtime reads it: emitted programs state these as literals."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Param:
    """A logical parameter. shards: (dim, outer, axis) cuts that make this rank's box, in order.

    hidden: a matrix between the embedding and the head, neither of them. router_bias: moved by how
    its router's choices fall, not by a gradient.
    """

    name: str
    shape: tuple[int, ...]
    shards: tuple[tuple[int, int, str], ...]
    init: str
    hidden: bool = False
    router_bias: bool = False


@dataclass(frozen=True)
class Entry:
    """A parameter's local box in a bucket, from element `offset` on. partial: the axes over which
    its gradient is summed once a step, beside those of the bucket."""

    param: str
    offset: int
    shape: tuple[int, ...]
    partial: tuple[str, ...]
    decay: bool


@dataclass(frozen=True)
class Bucket:
    """homes: pp coordinates that hold it; several where a tied parameter is used on each.

    trainable: a frozen bucket has no gradients and no optimizer state. dtype: of its parameters,
    "" for the model's.
    """

    name: str
    numel: int
    homes: tuple[int, ...]
    entries: tuple[Entry, ...]
    trainable: bool = True
    dtype: str = ""


@dataclass(frozen=True)
class Input:
    """An input of every step, by role. shape: of a micro-batch, B rows of S tokens."""

    role: str
    dtype: str
    shape: tuple[str, ...]

    @property
    def sequence_dim(self) -> int | None:
        """Return the dim that holds the sequence, None where none does."""
        return self.shape.index("S") if "S" in self.shape else None


@dataclass(frozen=True)
class Layout:
    """The program's data that all ranks share.

    stage_ranks: of every stage its pp coordinate. master: gradients, optimizer state and master
    weights are float32. reduce_dtype: in which gradients travel between ranks. optimizer: the one
    that was planned for.
    """

    model: str
    dtype: str
    mesh: dict[str, int]
    stage_ranks: tuple[int, ...]
    micro_batch: int
    num_microbatches: int
    seq: int
    vocab_size: int
    zero: int
    master: bool
    reduce_dtype: str
    flops_per_token: float
    params: tuple[Param, ...]
    buckets: tuple[Bucket, ...]
    optimizer: str = "adamw"
    inputs: tuple[Input, ...] = ()
    mirrored: bool = False  # context axes cut the sequence in mirrored shards
    rounding: str = "nearest"  # of updated weights that are narrow without a master
    wide_grads: bool = False  # gradients are summed in float32, masters or not
    replays: bool = False  # functions are recorded once and issued as CUDA graphs

    @property
    def frozen(self) -> frozenset[str]:
        """Names of the parameters that are not trained."""
        return frozenset(e.param for b in self.buckets if not b.trainable for e in b.entries)

    def param(self, name: str) -> Param:
        return next(p for p in self.params if p.name == name)


@dataclass(frozen=True)
class Piece:
    """Functions of a unique segment, and what they read besides parameters.

    Backward comes whole, or in two: input_grad, and weight_grad for later. offloads: which of the
    saved values wait for backward in the host's memory, by position. draws: of its dropouts, how
    many keys it reads.
    """

    forward: Callable[..., Any]
    takes_x: bool
    context: tuple[str, ...]
    data: tuple[str, ...]
    backward: Callable[..., Any] | None = None
    input_grad: Callable[..., Any] | None = None
    weight_grad: Callable[..., Any] | None = None
    offloads: tuple[int, ...] = ()
    draws: int = 0


@dataclass(frozen=True)
class Instance:
    """One use of a piece. reduces: buckets whose last gradient this instance's backward adds.

    first_draw: number of its first dropout in the whole model.
    """

    name: str
    piece: str
    params: tuple[str, ...]
    buckets: tuple[str, ...]
    reduces: tuple[str, ...]
    first_draw: int = 0
