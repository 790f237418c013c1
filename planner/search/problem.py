"""What a search is asked, immutable: a model, a cluster, a batch and pins."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.ir.inputs import StepInput, step_inputs
from meshwright.ir.mesh import Mesh
from meshwright.ir.plan import MOST_SUMMED, grad_dtype
from meshwright.ir.replay import may_replay, replays
from meshwright.ir.traced import Traced

from ..budget import BUDGET, SearchBudget
from ..cost.mix import mix_of_model
from ..hardware.cluster import Cluster
from ..remat.rules import row_bytes
from ..simulate.iteration import Iteration, iterations
from ..simulate.stage_memory import context_bytes, workspace_bytes
from ..simulate.step_model import Precision, precision_of
from .candidates import Candidate, may_offload, outer_axes
from .make_plan import resolve_optimizer
from .pins import Pins
from .precision import resolve_precision, resolve_reduce_dtype, resolve_rounding


@dataclass(frozen=True)
class Placing:
    """Inputs of placements. price: of a resident byte, None for the default. order: of the sequence
    over context axes, None for the cheapest. whole_sequence: tensor axes do not cut it."""

    cluster: Cluster
    seq: int
    global_batch: int
    micro_batch: int
    price: float | None
    shard_weights: bool
    order: str | None = None
    whole_sequence: bool = False

    def num_microbatches(self, mesh: Mesh) -> int:
        """Return the micro-batches of a step on a compute mesh; all other devices cut the batch."""
        rows = max(1, self.global_batch * mesh.num_devices // self.cluster.num_devices)
        return rows // self.micro_batch or 1


@dataclass(frozen=True)
class Problem:
    """A question to the search.

    seq: tokens of a row. global_batch: rows of a step. placing: what placements are solved for,
    where they are another problem's; None: for this one.
    """

    traced: Traced
    cluster: Cluster
    seq: int
    global_batch: int
    pins: Pins
    budget: SearchBudget = BUDGET
    placing: Placing | None = None

    @cached_property
    def placed_for(self) -> Placing:
        """Return what its placements are solved for."""
        pins = self.pins
        sizes = self.seq, self.global_batch, pins.micro_batch or 1
        cuts = bool(pins.shard_weights), pins.cp_order, pins.shard_sequence == 0
        own = Placing(self.clocked, *sizes, pins.price, *cuts)
        return self.placing or own

    @cached_property
    def precision(self) -> Precision:
        """Bytes of an element under the pins, in a step of few micro-batches."""
        return self.precision_at(1)

    def precision_at(self, num_microbatches: int) -> Precision:
        """Return the bytes of an element for a step of `num_microbatches` micro-batches."""
        return self._precisions[num_microbatches > MOST_SUMMED]

    @cached_property
    def _precisions(self) -> tuple[Precision, Precision]:
        """Precision for few micro-batches and for many."""
        return self._precision(1), self._precision(MOST_SUMMED + 1)

    def _precision(self, num_microbatches: int) -> Precision:
        dtype, pins = self.traced.dtype, self.pins
        precision = resolve_precision(dtype, pins)
        summed = grad_dtype(dtype, precision, num_microbatches)
        reduced = resolve_reduce_dtype(dtype, pins, num_microbatches)
        optimizer, rounding = resolve_optimizer(pins), resolve_rounding(dtype, pins)
        return precision_of(dtype, precision, summed, reduced, optimizer, rounding)

    @cached_property
    def iterated(self) -> dict[str, Iteration]:
        """Return what Muon iterates on, where the pins name it."""
        return iterations(resolve_optimizer(self.pins), self.traced)

    @cached_property
    def offloads(self) -> bool:
        """Return whether values may wait in the host's memory."""
        return may_offload(self.cluster, self.pins)

    @cached_property
    def _may_replay(self) -> bool:
        return may_replay(self.cluster.device.type, self.traced.joints.values())

    @cached_property
    def split(self) -> int:
        """Return how many ranks of a node may cut a row where no rank would be idle: several where
        what backward reads of one row takes a good part of a device's memory, and where rows are
        so few that pipelines wait for them."""
        budget, devices = self.budget, self.cluster.num_devices
        memory = self.cluster.device.memory_bytes
        if row_bytes(self.traced, self.seq, "cheap") > budget.long_row * memory:
            return budget.max_split
        few = self.global_batch <= devices and self.cluster.nodes > 1
        return 4 if few and devices <= budget.scarce_devices else 1

    def replays(self, c: Candidate) -> bool:
        """Return whether the host issues a candidate's functions as CUDA graphs."""
        layout = c.num_stages, c.schedule, c.zero, c.num_microbatches
        return self._may_replay and replays(*layout)

    @property
    def any_order(self) -> bool:
        """Return whether either outer axis may be taken, and candidates have one: bounds with pp
        outermost hold for both then."""
        both = len(outer_axes(self.cluster, self.pins, self.budget)) > 1
        return self.pins.outer is None and self.cluster.nodes > 1 and not both

    @cached_property
    def clocked(self) -> Cluster:
        """The cluster with the clock of its devices in a step of this model."""
        return mix_of_model(self.traced, self.seq, self.cluster).on(self.cluster)

    @cached_property
    def rates(self) -> Cluster:
        """The cluster as costs read it: without a name and sizes of memory."""
        return self.clocked.rates

    @cached_property
    def read_by_proposals(self) -> Hashable:
        """Return what proposed saved sets follow from, beside placements."""
        of = self.placed_for
        return of.cluster.rates, of.seq, of.micro_batch

    @cached_property
    def read_by_options(self) -> Hashable:
        """Return what the rematerialisation options of a piece follow from, beside placements and
        at given sizes."""
        offloads = self.budget.offload_shares if self.offloads else ()
        wide = self.precision.wide_grads
        return self.read_by_proposals, self.rates, self.seq, wide, offloads

    @cached_property
    def read_by_units(self) -> Hashable:
        """Return what the units of a candidate follow from, beside placements."""
        return self.read_by_options, self.precision

    @cached_property
    def read_by_bounds(self) -> Hashable:
        """Return what a bound without memory follows from, beside placements."""
        return self.read_by_units, self.any_order

    def context_bytes(self, c: Candidate) -> float:
        """Return bytes of a rank that every unit is given: tables, a step's data, workspaces."""
        key = c.micro_batch, c.num_microbatches
        if key not in self._contexts:
            sizes, context = {"B": c.micro_batch, "S": self.seq}, self.traced.segmented.context
            given = context, self._inputs, sizes, c.num_microbatches
            self._contexts[key] = context_bytes(*given)
        return self._contexts[key] + workspace_bytes(self.cluster.device.type, self.replays(c))

    @cached_property
    def _contexts(self) -> dict[tuple[int, int], float]:
        """Return `context_bytes` by rows of a micro-batch and the number of these."""
        return {}

    @cached_property
    def _inputs(self) -> tuple[StepInput, ...]:
        """The schema of a step."""
        return step_inputs([self.traced.graph])


def links_within(cluster: Cluster, mesh: Mesh) -> Cluster:
    """Return the cluster as placements on a compute mesh read it: of a mesh within a node, which
    lies innermost, the innermost links alone."""
    rates, inner = cluster.rates, cluster.levels[0]
    if mesh.num_devices > min(cluster.devices_per_node, inner.span):
        return rates
    return replace(rates, nodes=1, levels=(inner,))
