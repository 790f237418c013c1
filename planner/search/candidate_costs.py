"""What a candidate costs: placements, options, units and storage, each made once.

Placements and the memory frontier are solved once per compute mesh and used at every micro-batch
and mesh. Options, buckets and units are kept by what they read (memo.py), so that thousands of
candidates share a few hundred of them.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from meshwright.ir.mesh import Mesh
from meshwright.ir.plan import Piece

from ..bounds.analytic import compute_times
from ..bounds.floor import Floor
from ..bounds.lp import LpBound
from ..cost.op_cost import Costs
from ..cost.piece_cost import WorkTable
from ..hardware.topology import Links
from ..pipeline.schedules import SPLIT
from ..remat.options import (
    CHOSEN,
    Option,
    UnitOptions,
    offloads,
    proposals,
    undominated,
    with_staying,
)
from ..remat.rules import SavedSet, saved_values
from ..sharding.chain import ShardedModel, shard_model
from ..simulate.stage_memory import Storage
from ..simulate.step_model import (
    Precision,
    UnitTable,
    frozen_share,
    unit_buckets,
)
from .candidate_units import CandidateUnits, Layout, UnitKinds, piece_under, unit_kinds
from .candidates import Candidate
from .instances import instances_of, params_of
from .memo import Memo, Placed
from .problem import Problem, links_within


@dataclass(frozen=True)
class MeshCosts:
    """What was made of a compute mesh: placements, and the proposals and options of pieces, by all
    of their keys but the key of the placements: another process has its own."""

    sharded: ShardedModel
    proposed: dict[tuple, tuple[SavedSet, ...]]
    options: dict[tuple, list[Option]]


@dataclass(frozen=True)
class CandidateCosts:
    """Costs of the candidates of a problem."""

    problem: Problem
    memo: Memo = field(default_factory=Memo, compare=False)

    def under(self, **changes: Any) -> "CandidateCosts":
        """Return costs of the problem with changes, under the placements of this one unless they
        change too."""
        kept = {"placing": self.problem.placed_for, **changes}
        return CandidateCosts(replace(self.problem, **kept), self.memo)

    @cached_property
    def _sharded(self) -> dict[Mesh, ShardedModel]:
        return self.memo.table("placements", self.problem.placed_for)

    @cached_property
    def _placed(self) -> dict[Mesh, Placed]:
        return self.memo.table("keys of placements", self.problem.placed_for)

    @cached_property
    def proposed(self) -> dict[tuple[Placed, str, bool], tuple[SavedSet, ...]]:
        """Return the sets of values to keep that deserve an exact price, by placements, piece and
        whether micro-batches are recorded."""
        return self.memo.table("proposals", self.problem.read_by_proposals)

    @cached_property
    def _layouts(self) -> dict[Hashable, Layout]:
        return self.memo.table("layouts")

    @cached_property
    def _kinds(self) -> dict[Hashable, UnitKinds]:
        return self.memo.table("kinds of units")

    @cached_property
    def _works(self) -> dict[Hashable, WorkTable]:
        return self.memo.table("works", self.problem.rates, self.problem.seq)

    @cached_property
    def _options(self) -> dict[tuple, list[Option]]:
        return self.memo.table("options", self.problem.read_by_options)

    @cached_property
    def _units(self) -> dict[Hashable, CandidateUnits]:
        return self.memo.table("units", self.problem.read_by_units)

    @cached_property
    def pipelines(self) -> dict[Hashable, float]:
        """Bounds of pipelines without memory (candidate_bounds.py)."""
        return self.memo.table("pipelines", self.problem.read_by_bounds)

    @cached_property
    def floors(self) -> dict[Hashable, Floor]:
        """Return what floors of candidates follow from (candidate_bounds.py)."""
        return self.memo.table("floors", self.problem.read_by_bounds)

    @cached_property
    def _links(self) -> dict[Mesh, Links]:
        return self.memo.table("links", self.problem.rates)

    @cached_property
    def _stored(self) -> dict[Hashable, float]:
        return self.memo.table("stored bytes")

    @cached_property
    def tails(self) -> dict[Hashable, float]:
        """Return how much longer tails are with the other outer axis (candidate_bounds.py)."""
        return self.memo.table("tails", self.problem.rates)

    @cached_property
    def ends(self) -> dict[Hashable, float]:
        """Return the least times after the last backward (candidate_bounds.py)."""
        return self.memo.table("ends of steps", self.problem.rates)

    @cached_property
    def lp_bounds(self) -> dict[Hashable, LpBound]:
        """LP bounds (lp_bound.py)."""
        problem, budget = self.problem, self.problem.budget
        spent = budget.max_actions, budget.lp_step, budget.quick
        return self.memo.table("LP bounds", problem.read_by_bounds, *spent)

    def sharding(self, mesh: Mesh) -> ShardedModel:
        """Placements on a compute mesh, at one row a micro-batch; no row is split."""
        if mesh not in self._sharded:
            with self.memo.clock.layer("placements"):
                self._sharded[mesh] = self.memo.shared(self._placements(mesh))
        return self._sharded[mesh]

    def is_placed(self, mesh: Mesh) -> bool:
        """Return whether the placements on a compute mesh are known."""
        return mesh in self._sharded

    def given(self, mesh: Mesh) -> MeshCosts:
        """Return what is known of a compute mesh."""
        placed, found = self.placed(mesh), self._sharded[mesh]
        tables: tuple[dict[Any, Any], ...] = (self.proposed, self._options)
        return MeshCosts(
            found, *({k[1:]: v for k, v in known.items() if k[0] == placed} for known in tables)
        )

    def take(self, mesh: Mesh, made: MeshCosts) -> None:
        """Know what another process made of a compute mesh."""
        self._sharded[mesh] = self.memo.shared(made.sharded)
        placed = self.placed(mesh)
        self.proposed.update({(placed, *key): found for key, found in made.proposed.items()})
        self._options.update({(placed, *key): found for key, found in made.options.items()})

    def placed(self, mesh: Mesh) -> Placed:
        """Return the key of the placements on a compute mesh."""
        if mesh not in self._placed:
            self._placed[mesh] = self.memo.placed(mesh, self.sharding(mesh))
        return self._placed[mesh]

    def _placements(self, mesh: Mesh) -> ShardedModel:
        of, traced = self.problem.placed_for, self.problem.traced
        return shard_model(
            traced.segmented,
            traced.joints,
            mesh=mesh,
            cluster=of.cluster,
            micro_batch=of.micro_batch,
            seq=of.seq,
            num_microbatches=of.num_microbatches(mesh),
            price=of.price,
            shard_matmul_weights=of.shard_weights,
            whole_sequence=of.whole_sequence,
            order=of.order,
            known=self.memo.table("costs of placements", links_within(of.cluster, mesh)),
            posed=self.memo.table("integer programs"),
        )

    def options(self, c: Candidate) -> dict[str, list[Option]]:
        """Return the options of every piece by its name, the fastest first.

        There is one where a rule is given and nothing may be offloaded.
        """
        split, wide = c.schedule in SPLIT, self._wide(c)
        found = {}
        for name in self.sharding(c.compute).lowered:
            given = c.micro_batch, wide, name, c.recompute, split, self.problem.replays(c)
            key = (self.placed(c.compute), *given)
            if key not in self._options:
                with self.memo.clock.layer("memory frontier"):
                    self._options[key] = self._priced(c, name, split)
            found[name] = self._options[key]
        return found

    def _priced(self, c: Candidate, name: str, split: bool) -> list[Option]:
        low, table = self.sharding(c.compute).lowered[name], self._table(c)
        if c.recompute == CHOSEN:
            sets = self._proposals(c.compute, name, self.problem.replays(c))
        else:
            sets = (SavedSet(saved_values(low.graph, c.recompute)),)

        def option(kept: SavedSet) -> Option:
            given = low.graph, low.placements, kept.saved, split, kept.offloaded
            return kept, table.of(*given)

        found = undominated(map(option, sets), split)
        if not self.problem.offloads:
            return found
        given, budget = (low.graph, low.placements), self.problem.budget
        away = [k for one in found for k in offloads(*given, one, table.costs, budget)]
        return with_staying(undominated([*found, *map(option, away)], split), found, split)

    def _table(self, c: Candidate) -> WorkTable:
        key = c.compute, c.micro_batch, self._wide(c), self.problem.replays(c)
        if key not in self._works:
            self._works[key] = WorkTable(self.op_costs(*key))
        return self._works[key]

    def op_costs(
        self, mesh: Mesh, micro_batch: int, wide_grads: bool, replayed: bool = False
    ) -> Costs:
        """Return costs of ops on a compute mesh."""
        problem, sizes = self.problem, {"B": micro_batch, "S": self.problem.seq}
        return Costs(problem.rates.issued(replayed), mesh, sizes, wide_grads, self.memo.functions)

    def links(self, mesh: Mesh) -> Links:
        """Return the links of a mesh."""
        if mesh not in self._links:
            self._links[mesh] = Links(self.problem.rates, mesh)
        return self._links[mesh]

    def precision(self, c: Candidate) -> Precision:
        """Return bytes of an element: many micro-batches are summed in float32."""
        return self.problem.precision_at(c.num_microbatches)

    def _wide(self, c: Candidate) -> bool:
        return self.precision(c).wide_grads

    def _proposals(self, mesh: Mesh, name: str, replayed: bool) -> tuple[SavedSet, ...]:
        """Propose saved sets at the sizes of the placements: bytes and times all grow with rows."""
        key = self.placed(mesh), name, replayed
        if key not in self.proposed:
            low, of = self.sharding(mesh).lowered[name], self.problem.placed_for
            sizes = {"B": of.micro_batch, "S": of.seq}
            issued = of.cluster.issued(replayed)
            costs = Costs(issued, mesh, sizes, functions=self.memo.functions)
            self.proposed[key] = proposals(low.graph, low.placements, costs)
        return self.proposed[key]

    def layout(self, c: Candidate) -> Layout:
        """Instances and buckets of a candidate's mesh."""
        key = (self.placed(c.compute), c.tp, c.cp, c.dp)
        if key not in self._layouts:
            self._layouts[key] = self._layout(c)
        return self._layouts[key]

    def _layout(self, c: Candidate) -> Layout:
        sharded, traced = self.sharding(c.compute), self.problem.traced
        params = params_of(traced, sharded)
        pieces = tuple(
            Piece(low.name, low.graph, low.placements, ()) for low in sharded.lowered.values()
        )
        stages, mesh = [0] * len(sharded.instances), replace(c, pp=1).mesh
        return Layout(*instances_of(traced, sharded, stages, params, pieces, mesh), params)

    def units_of(self, c: Candidate) -> CandidateUnits:
        """The units of a candidate with their options."""
        split = c.schedule in SPLIT
        placed = self.placed(c.compute)
        given = c.micro_batch, c.zero, c.recompute, split, self._wide(c), self.problem.replays(c)
        key = (placed, c.mesh, *given)
        if key not in self._units:
            self._units[key] = self._candidate_units(c)
        return self._units[key]

    def _candidate_units(self, c: Candidate) -> CandidateUnits:
        options = self.options(c)
        works = {
            piece_under(name, k): work
            for name, found in options.items()
            for k, (_, work) in enumerate(found)
        }
        table = UnitTable(
            works, c.zero, self.links(c.mesh), self.precision(c), self.problem.iterated
        )
        kinds, distinct = self._unit_kinds(c)
        of_kind: list[UnitOptions] = [
            tuple(table.unit(piece_under(piece, k), held) for k in range(len(options[piece])))
            for piece, held in distinct
        ]
        units = tuple(of_kind[kind] for kind in kinds)
        return CandidateUnits(table, units, kinds, compute_times(units, kinds, c.zero >= 2))

    def _unit_kinds(self, c: Candidate) -> UnitKinds:
        key = (self.placed(c.compute), c.tp, c.cp, c.dp, c.zero)
        if key not in self._kinds:
            layout = self.layout(c)
            by_name = {b.name: b for b in layout.buckets}
            held = unit_buckets(layout.instances, by_name, c.zero, set())
            pieces = (item.piece for item in layout.instances)
            self._kinds[key] = unit_kinds(zip(pieces, held, strict=True))
        return self._kinds[key]

    def stored_bytes(self, c: Candidate) -> float:
        """Return what some stage stores at least: the mean of parameters and their states."""
        key = self.placed(c.compute), c.mesh, c.zero, self.precision(c)
        if key not in self._stored:
            share = frozen_share(c.mesh, c.zero, self.precision(c))
            trained, frozen = self.layout(c).stored_bytes
            mean = (trained + share * frozen) / c.pp
            self._stored[key] = self.storage_bytes(c, mean, 0.0)
        return self._stored[key]

    def storage_bytes(self, c: Candidate, bucket: float, moving: float) -> float:
        """Return the bytes that a rank stores. bucket: bytes of all its buckets; moving: `beside`
        of them."""
        return Storage(bucket, moving, c.mesh, c.zero, self.precision(c)).total_bytes
