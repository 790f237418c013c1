"""A plan's step as another stack runs its layout."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from meshwright.ir.mesh import REDUCED, REPLICA, STORAGE, TENSOR
from meshwright.ir.plan import Piece, Plan

from ..cost.op_cost import Costs
from ..cost.piece_cost import Phase, PieceWork, WorkTable
from ..hardware.cluster import Cluster
from ..hardware.topology import Links
from ..simulate.simulator import simulate
from ..simulate.step_model import StepModel, Unit, precision_of_plan, step_model
from .profile import Software
from .traffic import reduced_whole, sent_by_owners, with_slices
from .work import Theirs, inner_pieces, layer_of

More = Callable[[PieceWork, Piece, Costs], PieceWork]


def unchanged(work: PieceWork, piece: Piece, costs: Costs) -> PieceWork:
    """Return the work of a piece as it is."""
    return work


def step_us(
    plan: Plan,
    cluster: Cluster,
    software: Software,
    more: More = unchanged,
) -> float:
    """Return the step of a plan's layout under a profile, in us. more: what else differs in the
    work of a piece."""
    return simulate(model_under(plan, cluster, software, more)).step_us


def model_under(
    plan: Plan, cluster: Cluster, software: Software, more: More = unchanged
) -> StepModel:
    """Return the step of a plan's layout as another stack runs it."""
    given = cluster, plan.mesh.compute, plan.sizes
    costs, wide = Costs(*given), precision_of_plan(plan).wide_grads
    issued = WorkTable(Costs(*given, wide_grads=wide))  # no micro-batch is recorded
    model = step_model(plan, cluster, issued)
    pieces = {piece.name: piece for piece in plan.pieces}
    works = {i.name: pieces[i.piece] for i in plan.instances}
    known: dict[str, PieceWork] = {}
    inner = inner_pieces(plan)
    # Of what was made in the first micro-batch nothing is added: read both, write the sum.
    later = 1 - 1 / plan.num_microbatches
    adding = 3 * later / cluster.device.hbm_bytes_per_s * 1e6 * software.adds_apart

    def changed(unit: Unit) -> Unit:
        piece = works[unit.name]
        if piece.name not in known:
            work = Theirs(piece, costs, software, piece.name in inner).work(unit.work)
            known[piece.name] = more(work, piece, costs)
        accumulate = unit.accumulate_us + adding * unit.work.added_bytes
        sums = 0.0 if software.adds_apart else unit.sums_us
        return replace(unit, work=known[piece.name], accumulate_us=accumulate, sums_us=sums)

    stages = tuple(tuple(map(changed, stage)) for stage in model.stages)
    if software.layer_us:
        again = {p.name for p in plan.pieces if Theirs(p, costs, software).keeps_nothing}
        names = (i.name for i in plan.instances if i.piece in again)
        pace = _Pace.of(software.layer_us, model.stages, names)
        stages = tuple(tuple(map(pace.kept, stage)) for stage in stages)
    reduces = model.reduces_every_microbatch and not software.reduces_once
    model = replace(model, stages=stages, reduces_every_microbatch=reduces)
    if software.reduces_whole:
        model = reduced_whole(model, plan, Links(cluster, plan.mesh))
    if software.broadcasts and plan.zero in (1, 2):
        model = sent_by_owners(model, plan, Links(cluster, plan.mesh))
    if software.slice_us and plan.zero in (1, 2):
        model = with_slices(model, plan, software.slice_us)
    if software.scatters_sends:
        model = _scattered(model, plan, cluster)
    if software.waits_for_sends:
        model = _waiting(model)
    if plan.zero in software.reduces_last:
        model = _reduced_last(model, plan, Links(cluster, plan.mesh), software)
    return model


@dataclass(frozen=True)
class _Pace:
    """The host's least time of a layer, in us. units: of each layer, wherever its stages lie.
    again: units that backward computes again."""

    layer_us: float
    units: Mapping[str, int]
    again: frozenset[str]

    @staticmethod
    def of(layer_us: float, stages: Iterable[Iterable[Unit]], again: Iterable[str]) -> "_Pace":
        units = Counter(layer_of(unit.name) for stage in stages for unit in stage)
        return _Pace(layer_us, units, frozenset(again))

    def kept(self, unit: Unit) -> Unit:
        """Return a unit of a layer at that pace, a third of it in forward."""
        if not (layer := layer_of(unit.name)):
            return unit
        third, work = self.layer_us / self.units[layer] / 3, unit.work
        behind = third * (2 + (unit.name in self.again)) * work.runs_backward
        ahead, back = _at_least(work.forward, third), _at_least(work.backward, behind)
        halves = work.split
        if halves is not None:
            first = _at_least(halves.input_grad, behind - third)
            halves = replace(
                halves, input_grad=first, weight_grad=_at_least(halves.weight_grad, third)
            )
        return replace(unit, work=replace(work, forward=ahead, backward=back, split=halves))


def _at_least(phase: Phase, call_us: float) -> Phase:
    return replace(phase, call_us=max(phase.call_us, call_us))


def _scattered(model: StepModel, plan: Plan, cluster: Cluster) -> StepModel:
    """Sends of a share of each boundary value that all tp ranks hold, gathered where it arrives."""
    ranks, links = plan.mesh.count(TENSOR), Links(cluster, plan.mesh)
    ways = zip(model.stages, model.stage_ranks, model.stage_ranks[1:], strict=False)
    sends = (
        links.transfer_us(size / ranks, *ends) + links.group_us("all_gather", size, TENSOR)
        for units, *ends in ways
        for size in [units[-1].work.exit_bytes]
    )
    return replace(model, send_us=(*sends, 0.0))


def _waiting(model: StepModel) -> StepModel:
    """Transfers between stages in turn with what a rank computes, on both of their ends."""
    ends = zip((0.0, *model.send_us), model.send_us, strict=False)
    stages = tuple(
        (_longer(units[0], before + after), *units[1:])
        for units, (before, after) in zip(model.stages, ends, strict=True)
    )
    return replace(model, stages=stages, send_us=(0.0,) * len(model.send_us))


def _longer(unit: Unit, us: float) -> Unit:
    """Return a unit whose forward and backward wait for transfers; of one in two, the first half,
    which makes what is sent."""
    work = unit.work
    ahead, back = _later(work.forward, us), _later(work.backward, us)
    halves = work.split
    if halves is not None:
        halves = replace(halves, input_grad=_later(halves.input_grad, us))
    return replace(unit, work=replace(work, forward=ahead, backward=back, split=halves))


def _later(phase: Phase, us: float) -> Phase:
    return replace(phase, collective_us=phase.collective_us + us)


def _reduced_last(model: StepModel, plan: Plan, links: Links, software: Software) -> StepModel:
    """Reductions of gradients after the last backward, before the optimizer. All buckets of a rank
    go together, as its updated parameters do, so that each kind of collective waits once."""
    whole = software.reduces_whole or not plan.zero
    kind, axes = ("all_reduce", REDUCED) if whole else ("reduce_scatter", STORAGE)
    once = links.group_us(kind, 0.0, *axes)
    summed = links.group_us("all_reduce", 0.0, REPLICA)
    gathered = 0.0 if software.broadcasts else links.group_us("all_gather", 0.0, *STORAGE)
    refresh = []
    for rank, gathers_us in enumerate(model.refresh_us):
        mine = [s for s, home in enumerate(model.stage_ranks) if home == rank]
        units = [unit for s in mine for unit in model.stages[s]]
        buckets, copies = (sum(us > 0 for us in times) for times in (
            [unit.reduce_us for unit in units], [unit.replicas_us for unit in units]))  # fmt: skip
        spared = max(buckets - 1, 0) * (once + gathered * (gathers_us > 0))
        spared += max(copies - 1, 0) * summed
        waits = sum(unit.reduce_us + unit.replicas_us for unit in units)
        refresh.append(gathers_us + waits - spared)
    stages = tuple(
        tuple(replace(unit, reduce_us=0.0, replicas_us=0.0) for unit in stage)
        for stage in model.stages
    )
    return replace(model, stages=stages, refresh_us=tuple(refresh))
