"""Predicted step time and peak memory of a plan, from its text and the cluster alone."""

from dataclasses import dataclass, replace

from meshwright.ir.plan import Plan

from ..cost.piece_cost import WorkTable
from ..hardware.cluster import Cluster
from .simulator import Timeline, simulate
from .stage_memory import Peak, host_bytes, plan_peaks
from .step_model import StepModel, step_model


@dataclass(frozen=True)
class Prediction:
    """cluster: what it was priced on. model: what was run, timeline: how. peaks: by rank."""

    cluster: Cluster
    model: StepModel
    timeline: Timeline
    peaks: tuple[Peak, ...]

    @property
    def step_us(self) -> float:
        return self.timeline.step_us

    @property
    def peak_bytes(self) -> float:
        return max(p.total_bytes for p in self.peaks)

    @property
    def host_bytes(self) -> float:
        """Return what a device offloads at most."""
        return max(host_bytes(self.model, rank) for rank in range(len(self.peaks)))

    @property
    def peak_rank(self) -> int:
        """The pp rank with the highest peak."""
        return max(range(len(self.peaks)), key=lambda s: self.peaks[s].total_bytes)


def predict(plan: Plan, cluster: Cluster, table: WorkTable | None = None) -> Prediction:
    """Simulate a plan on a cluster."""
    model = step_model(plan, cluster, table)
    return Prediction(cluster, model, simulate(model), plan_peaks(plan, model))


def with_costs(plan: Plan, prediction: Prediction, cluster: Cluster, *more: tuple) -> Plan:
    """The plan with its predicted numbers written in; `more` are further (name, number) pairs."""
    seconds = prediction.step_us / 1e6
    tokens = plan.global_batch * plan.seq / seconds
    peak_flops = cluster.device.matmul_rate(plan.dtype) * plan.mesh.num_devices
    costs = (
        ("predicted_step_us", prediction.step_us),
        ("predicted_peak_bytes", prediction.peak_bytes),
        ("predicted_tokens_per_s", tokens),
        ("predicted_matmul_rate_share", tokens * plan.flops_per_token / peak_flops),
        *([("predicted_host_bytes", away)] if (away := prediction.host_bytes) else []),
        *more,
    )
    return replace(plan, costs=costs)
