"""What is said of one point: the step, what limits it, and what a budget of tokens takes."""

from dataclasses import dataclass

from meshwright.ir.mesh import Mesh

from ..hardware.cluster import Cluster
from ..simulate.simulator import Timeline
from ..simulate.stage_memory import usable_bytes
from ..simulate.step_model import StepModel, Unit
from .edits import Point
from .prices import Part

SECONDS_A_DAY = 86_400.0
OBJECTIVES = ("time", "cost", "energy", "memory")
# Kinds of time that limit a step. Of links the name follows.
COMPUTE, MEMORY, AGAIN, BUBBLE = "compute", "memory traffic", "recompute", "bubble"


@dataclass(frozen=True)
class Step:
    """The step of a plan on a point.

    plan: its layout in words. gap: to the bound of the search, 0 where none was made. shares: of
    the step, by what it is spent on, the largest first. mfu: of the dense bf16 peak.
    """

    plan: str
    step_us: float
    gap: float
    tokens_per_s: float
    mfu: float | None
    peak_bytes: float
    usable_bytes: float
    shares: tuple[tuple[str, float], ...]

    @property
    def limit(self) -> str:
        """Return what takes most of the step."""
        return self.shares[0][0]


@dataclass(frozen=True)
class Budget:
    """What training on some tokens takes; None where the part's figure is not known."""

    days: float
    dollars: float | None
    kwh: float | None


@dataclass(frozen=True)
class Answer:
    """A point and its best plan; where there is none, why. devices: of the cluster."""

    point: Point
    step: Step | None
    why: str = ""
    part: Part = Part()

    @property
    def devices(self) -> int:
        """Return the number of devices of the cluster."""
        return self.point.cluster.num_devices

    def budget(self, tokens: float) -> Budget | None:
        """Return what training on so many tokens takes; None where nothing fits."""
        if self.step is None:
            return None
        seconds = tokens / self.step.tokens_per_s
        hours = seconds / 3600 * self.devices
        price, watts = self.part.price_per_hour, self.part.watts
        dollars = None if price is None else hours * price
        return Budget(seconds / SECONDS_A_DAY, dollars, watts and hours * watts / 1e3)

    def rank(self, objective: str) -> float:
        """Return what the objective wants to be small: seconds, dollars or kWh a token, or bytes;
        infinite where nothing fits, or a figure is not known."""
        found = self.budget(1.0)
        if self.step is None or found is None:
            return float("inf")
        by = {
            "time": found.days,
            "cost": found.dollars,
            "energy": found.kwh,
            "memory": self.step.peak_bytes,
        }
        value = by[objective]
        return float("inf") if value is None else value


def step_of(
    plan: str,
    point: Point,
    model: StepModel,
    timeline: Timeline,
    mesh: Mesh,
    peak_bytes: float,
    flops_per_token: float,
    part: Part,
    gap: float = 0.0,
) -> Step:
    """Return what a simulated step says of its point."""
    rate = point.global_batch * point.seq / timeline.step_us * 1e6
    peak = part.peak_flops_per_s
    devices = point.cluster.num_devices
    return Step(
        plan,
        timeline.step_us,
        gap,
        rate,
        None if peak is None else rate * flops_per_token / devices / peak,
        peak_bytes,
        usable_bytes(point.cluster),
        _shares(model, timeline, point.cluster, mesh),
    )


def _shares(
    model: StepModel, timeline: Timeline, cluster: Cluster, mesh: Mesh
) -> tuple[tuple[str, float], ...]:
    """Return the shares of a step by kind, as the mean over pp ranks.

    A rank's step is the compute of its actions, waiting inside them, the bubble, and the end, which
    is the update and what of the gradients' reduction nothing hides.
    """
    ranks = range(len(timeline.busy_us))
    found: dict[str, float] = {}

    def add(kind: str, us: float) -> None:
        share = max(us, 0.0) / timeline.step_us / len(ranks)
        found[kind] = found.get(kind, 0.0) + share

    inner, outer = _link(cluster, mesh.compute), _link(cluster, mesh)
    for rank in ranks:
        mine = [s for s, r in enumerate(model.stage_ranks) if r == rank]
        units = [unit for s in mine for unit in model.stages[s]]
        again = model.num_microbatches * sum(unit.work.again_us for unit in units)
        kinds = _busy(units, model.num_microbatches)
        busy, bubble = timeline.busy_us[rank], timeline.bubble_us(rank)
        end = timeline.step_us - busy - timeline.exposed_us[rank] - max(bubble, 0.0)
        update = min(model.optimizer_us[rank], max(end, 0.0))
        add(COMPUTE, kinds[COMPUTE] - again)
        add(AGAIN, again)
        add(MEMORY, busy - kinds[COMPUTE] - kinds["links"] + update)
        add(f"link {inner}", kinds["links"])
        add(BUBBLE, bubble)
        add(f"link {outer}", timeline.exposed_us[rank] + end - update)
    return tuple(sorted(found.items(), key=lambda item: -item[1]))


def _busy(units: list[Unit], microbatches: int) -> dict[str, float]:
    """Return us of a step's actions in matmuls with attention, and in collectives among them."""
    phases = [p for unit in units for p in (unit.work.forward, unit.work.backward)]

    def total(*names: str) -> float:
        return microbatches * sum(getattr(phase, name) for phase in phases for name in names)

    return {COMPUTE: total("matmul_us", "attention_us"), "links": total("collective_us")}


def _link(cluster: Cluster, mesh: Mesh) -> str:
    return cluster.level(min(mesh.num_devices, cluster.num_devices)).name
