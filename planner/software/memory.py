"""The peak memory of a layout as another stack holds it.

Beside what our programs hold otherwise: a layer that is computed again whole keeps the value that
enters it and nothing else, and holds all its values at once in backward; attention that keeps its
scores holds them, too; a loss on whole logits holds those, a copy in float32 and its gradient;
gradients may take other bytes; a step of the optimizer may copy them; and what is outside of a plan
counts: fragments of what comes and goes, communicators, the driver.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

from meshwright.ir.mesh import PIPELINE, STORAGE, TENSOR, Mesh
from meshwright.ir.plan import Plan

from ..cost.op_cost import Costs
from ..cost.piece_cost import Phase, PieceWork, WorkTable
from ..hardware.cluster import Cluster
from ..remat.rules import saved_values
from ..simulate.stage_memory import Peak, context_bytes, model_peaks, workspace_bytes
from ..simulate.step_model import Precision, Unit, precision_of_plan, step_model, work_table
from .profile import Software
from .traffic import params_of, updated_buckets
from .work import Theirs, inner_pieces, layer_of

# Of scores in their dtype: what softmax and dropout give, and a mask of bytes (Korthikanti et al.
# 2022, section 4.1).
SCORES_HELD = 2.5
# Kinds of memory that come and go within a step, and leave fragments.
MOVING = ("activations", "temporaries")


def peak_bytes(plan: Plan, cluster: Cluster, software: Software) -> float:
    """Return the most memory that a device holds under a profile."""
    return max(rank_bytes(plan, cluster, software))


def rank_bytes(plan: Plan, cluster: Cluster, software: Software) -> tuple[float, ...]:
    """Return the most memory that a device of each pp rank holds under a profile."""
    model, layers = step_model(plan, cluster), Layers(plan, cluster, software)
    stages = tuple(tuple(layers.units(stage)) for stage in model.stages)
    context = context_bytes(plan.context, plan.inputs, plan.sizes, plan.num_microbatches)
    workspaces = workspace_bytes(plan.device_type, recorded=False)
    given = plan.mesh, _precision(plan, software), context, workspaces
    peaks = model_peaks(replace(model, stages=stages), *given)
    found = [_Held.of(peak, plan, rank, software) for rank, peak in enumerate(peaks)]
    links = software.communicator_gib * communicators(plan.mesh)
    outside = (software.outside_gib + links) * 2**30
    room = cluster.device.memory_bytes - outside
    return tuple(outside + used + min(idle, max(room - used, 0.0)) for used, idle in found)


class _Held(NamedTuple):
    """Bytes of a rank that are in use at its peak, and those that the allocator holds beside them
    and gives back where the device has no more."""

    used: float
    idle: float

    @classmethod
    def of(cls, peak: Peak, plan: Plan, rank: int, software: Software) -> "_Held":
        used = peak.total_bytes + software.reduces_once * _waiting_bytes(plan, software, peak)
        if software.casts_shards and plan.zero == 3 and plan.precision == "master":
            used -= dict(peak.bytes_by_kind)["parameters"]
        used += software.copies_gathered * dict(peak.bytes_by_kind).get("gathered parameters", 0.0)
        return cls(used, _in_fragments(peak, software) + _copied_bytes(plan, rank, software))


def _in_fragments(peak: Peak, software: Software) -> float:
    """Return what the allocator holds beside what comes and goes, and cannot use."""
    moving = sum(size for kind, size in peak.bytes_by_kind if kind in MOVING)
    return moving * software.fragments / (1 - software.fragments)


def _waiting_bytes(plan: Plan, software: Software, peak: Peak) -> float:
    """Return what whole gradients take that wait for the last micro-batch in the dtype in which
    they travel, more than our shares and buffers of them."""
    if plan.zero < 2 or plan.num_microbatches == 1:
        return 0.0
    precision, kinds = _precision(plan, software), dict(peak.bytes_by_kind)
    cuts = plan.mesh.count(*STORAGE)
    more = kinds["gradients"] * (cuts * precision.carried / precision.grad - 1)
    return more - kinds.get("gradient buffers", 0.0)


def _copied_bytes(plan: Plan, rank: int, software: Software) -> float:
    """Return what a step of the optimizer takes beside a rank's own share, such as copies of its
    gradients.

    Nothing else fits into these blocks, so that the allocator keeps them from the first step on.
    """
    found = updated_buckets(plan, rank)
    names = params_of(found)
    sizes = (math.prod(p.local_shape(plan.mesh)) for p in plan.params if p.name in names)
    cuts = plan.mesh.count(*STORAGE) if plan.zero else 1
    share = sum(bucket.numel for bucket in found) / cuts
    largest = min(max(sizes, default=0), share)
    return max(software.flat_bytes * share, software.copy_bytes * largest)


def communicators(mesh: Mesh) -> int:
    """Return the communicators of a device: of all ranks and of each axis; where there are stages,
    one with each neighbour instead of one axis, and one of the ranks that hold a model."""
    axes = sum(size > 1 for _, size in mesh.axes)
    return axes + (axes > 0) + 2 * (mesh.count(PIPELINE) > 1)


def _precision(plan: Plan, software: Software) -> Precision:
    own, size = precision_of_plan(plan), software.grad_bytes
    return replace(own, grad=size, carried=size) if size else own


@dataclass
class Layers:
    """Units of a plan with the memory that another stack's have."""

    plan: Plan
    cluster: Cluster
    software: Software

    def __post_init__(self) -> None:
        costs = Costs(self.cluster, self.plan.mesh.compute, self.plan.sizes)
        inner = inner_pieces(self.plan)
        pieces = {
            p.name: Theirs(p, costs, self.software, p.name in inner) for p in self.plan.pieces
        }
        self.theirs = {i.name: pieces[i.piece] for i in self.plan.instances}
        found: dict[str, str] = {}
        for name in (i.name for i in self.plan.instances if layer_of(i.name)):
            found.setdefault(layer_of(name), name)
        self.firsts = frozenset(found.values())
        self.again = self.software.recomputes_whole or self.software.keeps_layers
        self.table: WorkTable = work_table(self.plan, self.cluster)

    def units(self, stage: tuple[Unit, ...]) -> Iterator[Unit]:
        """Give the units of a stage in order."""
        by_layer = groupby(stage, lambda unit: layer_of(unit.name) or unit.name)
        layers = [list(units) for _, units in by_layer]
        self.given = {
            after.name
            for layer in layers
            for unit, after in pairwise(layer)
            if self.theirs[unit.name].gives_again
        }
        whole = [layer for layer in layers if self._is_whole(layer)]
        # A stack hands its layers values in one layout; where we cut the first, it does not.
        entry = max((self._entry_bytes(layer[0]) for layer in whole), default=0.0)
        for layer in layers:
            yield from self._whole(layer, entry) if layer in whole else map(self._unit, layer)

    def _is_whole(self, layer: list[Unit]) -> bool:
        return self.again and all(self.theirs[unit.name].keeps_nothing for unit in layer)

    def _whole(self, layer: list[Unit], entry: float) -> Iterator[Unit]:
        """Units of a layer that is computed again whole: backward begins with all its values."""
        works = [self._keeping(unit) for unit in layer]
        values = sum(work.kept_bytes for work in works) - layer[0].work.entry_bytes
        values -= sum(map(self._shared_entry, layer[1:]))
        working = max(work.backward.peak_bytes for work in works)
        for unit, work in zip(layer, works, strict=True):
            last, first = unit is layer[-1], unit is layer[0]
            backward = replace(work.backward, peak_bytes=last * (values + working))
            kept = entry * first
            yield replace(unit, work=replace(work, kept_bytes=kept, backward=backward))

    def _keeping(self, unit: Unit) -> PieceWork:
        """The work of a unit that keeps all that backward reads."""
        piece = self.theirs[unit.name].piece
        every = saved_values(piece.graph, "none")
        work = self.table.of(piece.graph, piece.placements, every)
        return self._more(work, unit.name, keeps=True)

    def _unit(self, unit: Unit) -> Unit:
        piece = self.theirs[unit.name].piece
        keeps = piece.saved == saved_values(piece.graph, "none")
        work = self._more(unit.work, unit.name, keeps)
        entry = unit.work.entry_bytes if unit.name in self.given else self._shared_entry(unit)
        more = keeps * self._copied(unit) - entry
        return replace(unit, work=replace(work, kept_bytes=work.kept_bytes + more))

    def _copied(self, unit: Unit) -> float:
        """Return the bytes of the copies that a layer keeps and of what it keeps gathered, with its
        first unit."""
        if unit.name not in self.firsts:
            return 0.0
        ranks, of = self.plan.mesh.count(TENSOR), self.software
        share = unit.work.entry_bytes / (ranks if self.theirs[unit.name].takes_whole else 1)
        return share * (of.kept_copies + of.keeps_gathered * (ranks - 1))

    def _entry_bytes(self, unit: Unit) -> float:
        """Return the bytes that a rank keeps of what enters a unit."""
        return unit.work.entry_bytes - self._shared_entry(unit)

    def _shared_entry(self, unit: Unit) -> float:
        """Return the bytes of what enters a unit that its rank has a share of, where ours has it
        whole."""
        if not (self.software.cuts_sequence and self.theirs[unit.name].takes_whole):
            return 0.0
        return unit.work.entry_bytes * (1 - 1 / self.plan.mesh.count(TENSOR))

    def _more(self, work: PieceWork, name: str, keeps: bool) -> PieceWork:
        """Add scores and logits that are held whole. keeps: whether scores wait for backward."""
        theirs, (forward,) = self.theirs[name], self.theirs[name].parts[0]
        scores = sum(size for _, size in theirs.scores(forward)) * SCORES_HELD
        scores *= bool(self.software.attention_passes)
        logits = sum(map(theirs.logits_bytes, theirs.losses)) * self.software.logits_held
        passing = scores + logits * bool(self.software.loss_passes)
        return replace(
            work,
            kept_bytes=work.kept_bytes + scores * keeps - self._spared_bytes(theirs, keeps),
            forward=_passing(work.forward, passing),
            backward=_passing(work.backward, passing - scores * keeps),
        )

    def _spared_bytes(self, theirs: Theirs, keeps: bool) -> float:
        """Return the bytes of values that kernels of a library compute anew in backward, and of
        what ranks of a split layer have shares of, where we have it whole."""
        piece = theirs.piece
        saved = saved_values(piece.graph, "none") if keeps else piece.saved
        spared = frozenset(theirs.library.spared(saved))
        cuts = self.plan.mesh.count(TENSOR) if self.software.cuts_sequence else 1
        return sum(
            size * (1.0 if name in spared else 1 - 1 / cuts)
            for name in saved
            if name in spared or (cuts > 1 and theirs.has_whole(name))
            for size in [theirs.costs.local_bytes(piece.graph.values[name], piece.placements[name])]
        )


def _passing(phase: Phase, size: float) -> Phase:
    return replace(phase, peak_bytes=phase.peak_bytes + size)
