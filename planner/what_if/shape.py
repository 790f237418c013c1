"""A plan as it stands, priced on many clusters: what two clusters share is made once."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

from meshwright.ir.plan import Plan

from ..cost.mix import Mix, mix_of_plan
from ..cost.op_cost import Costs
from ..cost.phase_work import FunctionTable
from ..cost.piece_cost import WorkTable
from ..hardware.cluster import Cluster
from ..simulate.predict import Prediction
from ..simulate.simulator import Timeline, simulate
from ..simulate.stage_memory import Peak, plan_peaks
from ..simulate.step_model import (
    HeldByStage,
    StepModel,
    StoredTable,
    held_of_plan,
    precision_of_plan,
    step_model,
)


@dataclass
class Shape:
    """Prices of one plan. Its bytes are the same on all devices of a type; times follow from a
    cluster's rates, those of a piece from its device, and from links where its values are cut."""

    plan: Plan
    _functions: FunctionTable = field(default_factory=FunctionTable)
    _works: dict[Hashable, WorkTable] = field(default_factory=dict)
    _steps: dict[Cluster, tuple[StepModel, Timeline]] = field(default_factory=dict)
    _stored: dict[Hashable, StoredTable] = field(default_factory=dict)
    _peaks: dict[str, tuple[Peak, ...]] = field(default_factory=dict)
    _mixes: dict[tuple[str, bool], Mix] = field(default_factory=dict)

    def on(self, cluster: Cluster) -> Prediction:
        """Return the step on a cluster of as many devices."""
        rates = cluster.rates
        if rates not in self._steps:
            known = self._table(rates), self._held, self._stored_on(rates)
            model = step_model(self.plan, rates, *known)
            self._steps[rates] = model, simulate(model)
        model, timeline = self._steps[rates]
        kind = rates.device.type
        if kind not in self._peaks:
            self._peaks[kind] = plan_peaks(self.plan, model)
        return Prediction(cluster, model, timeline, self._peaks[kind])

    def _table(self, rates: Cluster) -> WorkTable:
        key = rates if self._cuts_values else (rates.device, rates.host_link_bytes_per_s)
        if key not in self._works:
            plan, wide = self.plan, precision_of_plan(self.plan).wide_grads
            issued = self._mix(rates).on(rates).issued(plan.replays)
            costs = Costs(issued, plan.mesh.compute, plan.sizes, wide, self._functions)
            self._works[key] = WorkTable(costs)
        return self._works[key]

    def _mix(self, rates: Cluster) -> Mix:
        """Return the mix of the plan, the same on all devices of a type that have a clock."""
        kind = rates.device.type, bool(rates.device.clock_gain)
        if kind not in self._mixes:
            self._mixes[kind] = mix_of_plan(self.plan, rates)
        return self._mixes[kind]

    def _stored_on(self, rates: Cluster) -> StoredTable:
        """Return what is known of buckets, which read links and the memory's bandwidth alone."""
        links = rates.levels, rates.nodes, rates.devices_per_node
        return self._stored.setdefault((links, rates.device.hbm_bytes_per_s), {})

    @cached_property
    def _held(self) -> HeldByStage:
        return held_of_plan(self.plan)

    @cached_property
    def _cuts_values(self) -> bool:
        return self.plan.mesh.compute.num_devices > 1
