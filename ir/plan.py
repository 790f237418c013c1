"""The Plan: every decision, as frozen data, enough to emit the program without the model.

Sizes: `micro_batch` rows of one data-parallel rank in one micro-batch (the graph's B); the global
batch is micro_batch * num_microbatches * dp rows of `seq` tokens (the last batch rows may be
padding). Shapes in pieces and params are logical; placements tell what a rank holds.
"""

from dataclasses import dataclass
from functools import cached_property

from .dtypes import HALVES, ITEM_BYTES
from .graph import Graph
from .inputs import StepInput, step_inputs
from .mesh import Mesh
from .ops.registry import definition
from .phases import Joint
from .placement import Placement, local_shape
from .replay import may_replay, replays
from .schedule import Schedule
from .sizes import Shape, evaluate, num_elements
from .tables import tables_among


@dataclass(frozen=True, slots=True)
class Param:
    """A logical parameter: shape, dtype, initial distribution, and how it lies on tensor axes."""

    name: str
    dtype: str
    shape: Shape
    placement: Placement
    init: str

    def local_shape(self, mesh: Mesh) -> tuple[int, ...]:
        return tuple(evaluate(s, {}) for s in local_shape(self.shape, self.placement, mesh))


@dataclass(frozen=True)
class Piece:
    """A unique segment under its placements: the lowered joint graph and what is kept for backward.

    `saved` lists values made in forward that backward reads; every other forward value that
    backward needs is computed again from them and from the piece's inputs. `offloaded` lists those
    of them, and of the piece's input, that wait for backward in the host's memory.
    """

    name: str
    graph: Graph
    placements: dict[str, Placement]
    saved: tuple[str, ...]
    offloaded: tuple[str, ...] = ()


def _counts_choices(graph: Graph, name: str) -> bool:
    """Tell whether a gradient is made of choices alone, of one router or of several."""
    op = graph.producer.get(name)
    if op is None or definition(op).counts_choices:
        return op is not None
    given = [operand for operand in op.inputs if operand]
    return bool(given) and all(_counts_choices(graph, operand) for operand in given)


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """One use of a piece on a stage, with its parameters and the buckets that hold them.

    first_draw: number of its first dropout in the whole model.
    """

    name: str
    piece: str
    stage: int
    params: tuple[str, ...]
    buckets: tuple[str, ...]
    first_draw: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A parameter's place in a flat bucket: its local box starts at `offset` (elements)."""

    param: str
    offset: int
    partial: tuple[str, ...]  # axes over which its gradient is summed once a step
    decay: bool  # weight decay applies (matrices)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters stored, gathered and reduced together, flat, in one dtype.

    numel is padded so that the data axis cuts it evenly. stages: one, or those that use a tied
    parameter, whose gradients are summed over them. trainable: of a frozen bucket there are no
    gradients and no optimizer state.
    """

    name: str
    dtype: str
    numel: int
    stages: tuple[int, ...]
    entries: tuple[Entry, ...]
    trainable: bool = True


def silent_stages(
    instances: tuple[InstancePlan, ...], buckets: tuple[Bucket, ...], num_stages: int
) -> int:
    """Return how many of the first stages train nothing; they get no gradient of their output."""
    trained = {b.name for b in buckets if b.trainable}
    stages = (i.stage for i in instances if not trained.isdisjoint(i.buckets))
    return min(stages, default=num_stages)


# Of plans that do not say it.
DEVICES_PER_NODE = 8


# Micro-batches whose gradients a narrow dtype may sum: of more, what each adds is rounded away.
MOST_SUMMED = 8


def grad_dtype(dtype: str, precision: str, num_microbatches: int = 1) -> str:
    """Return the dtype in which a rank sums its gradients."""
    many = dtype in HALVES and num_microbatches > MOST_SUMMED
    return "f32" if precision == "master" or many else dtype


@dataclass(frozen=True)
class Plan:
    model: str
    dtype: str
    graph_hash: str
    cluster: str
    vocab_size: int
    mesh: Mesh
    global_batch: int
    micro_batch: int
    num_microbatches: int
    seq: int
    zero: int
    recompute: str
    schedule_name: str
    flops_per_token: float
    coverage: tuple[str, ...]
    context: Graph
    constants: tuple[tuple[str, str, Shape, str], ...]  # hash, dtype, shape, base64 of the bytes
    params: tuple[Param, ...]
    pieces: tuple[Piece, ...]
    instances: tuple[InstancePlan, ...]
    buckets: tuple[Bucket, ...]
    stage_ranks: tuple[int, ...]  # of every stage its pp coordinate
    schedule: Schedule
    reduce_dtype: str  # in which gradients travel between ranks, whatever they are summed in
    precision: str = "pure"  # or "master": float32 gradients, moments and master weights
    rounding: str = ""  # of weights that are bf16 alone: "nearest" or "stochastic"
    devices_per_node: int = DEVICES_PER_NODE  # of the cluster
    device_type: str = ""  # of the cluster's devices, as torch names it; "" where it is not known
    device_name: str = ""
    cluster_text: str = ""  # of its cluster file; "" for a cluster of the catalogue
    optimizer: str = "adamw"  # whose state and traffic are counted; a run may name another
    effort: str = ""  # of the search that made it: "fast", "normal", "best"; "" without one
    identity: str = ""  # of the model, as the runtime states it in JSON; "" where nothing is known
    costs: tuple[tuple[str, float], ...] = ()  # predicted numbers by name, units in the name

    def piece(self, name: str) -> Piece:
        return next(p for p in self.pieces if p.name == name)

    def param(self, name: str) -> Param:
        return next(p for p in self.params if p.name == name)

    @property
    def inputs(self) -> tuple[StepInput, ...]:
        """Return the schema of what a step gives to the pieces."""
        return step_inputs(piece.graph for piece in self.pieces)

    @property
    def boundary_values(self) -> int:
        """Return how many values cross the boundary that most cross, behind the loss included."""
        return max(
            max(len(p.graph.inputs_of("activation")), len(Joint(p.graph).ys)) for p in self.pieces
        )

    def tables(self) -> set[str]:
        """Return the embeddings and heads (tables.py)."""
        return tables_among((self.piece(i.piece).graph, i.params) for i in self.instances)

    def router_biases(self) -> set[str]:
        """Parameters that how a router's choices fall moves, in place of a gradient."""
        found: set[str] = set()
        for item in self.instances:
            graph = self.piece(item.piece).graph
            made = zip(Joint(graph).grads.values(), item.params, strict=True)
            found.update(name for grad, name in made if grad and _counts_choices(graph, grad))
        return found

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the parameters that are not trained."""
        return tuple(e.param for b in self.buckets if not b.trainable for e in b.entries)

    @property
    def grad_dtype(self) -> str:
        return grad_dtype(self.dtype, self.precision, self.num_microbatches)

    @property
    def mirrored(self) -> bool:
        """Return whether ranks take the sequence of the data in mirrored shards."""
        placed = (
            p.placements[i.value.name] for p in self.pieces for i in p.graph.inputs_of("data")
        )
        return any(s.mirrored for placement in placed for shards in placement.dims for s in shards)

    @property
    def num_stages(self) -> int:
        return len(self.stage_ranks)

    def stages_of(self, rank: int) -> list[int]:
        """The stages that a pp rank holds, in order of the model."""
        return [stage for stage, home in enumerate(self.stage_ranks) if home == rank]

    @cached_property
    def replays(self) -> bool:
        """Return whether a rank issues its functions as CUDA graphs."""
        layout = self.num_stages, self.schedule_name, self.zero, self.num_microbatches
        return replays(*layout) and may_replay(self.device_type, (p.graph for p in self.pieces))

    @property
    def splits_backward(self) -> bool:
        """Return whether backward runs in two, I and W."""
        return any(action.kind == "W" for action in self.schedule[0])

    def homes(self, bucket: Bucket) -> tuple[int, ...]:
        """The pp ranks that hold a bucket, the rank of its first stage first."""
        return tuple(dict.fromkeys(self.stage_ranks[stage] for stage in bucket.stages))

    @property
    def sizes(self) -> dict[str, int]:
        return {"B": self.micro_batch, "S": self.seq}

    def local_bytes(self, piece: Piece, name: str) -> int:
        """Bytes a rank holds of a piece's value."""
        value = piece.graph.values[name]
        shape = local_shape(value.shape, piece.placements[name], self.mesh)
        return evaluate(num_elements(shape), self.sizes) * ITEM_BYTES[value.dtype]
