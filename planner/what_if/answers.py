"""What is said of one point: the step, what limits it, and what a budget of tokens takes."""

from dataclasses import dataclass

from meshwright.ir.mesh import Mesh

from ..hardware.usable import usable_bytes
from ..report.shares import shares_of
from ..simulate.simulator import Timeline
from ..simulate.step_model import StepModel
from .edits import Point
from .prices import Part

SECONDS_A_DAY = 86_400.0
INF = float("inf")


@dataclass(frozen=True)
class Step:
    """The step of a plan on a point.

    plan: its layout in words. gap: to the bound of the search, 0 where none was made. shares: of
    the step, by what it is spent on, the largest first. mfu: of the dense bf16 peak, which a
    sweep of the rates of matmuls changes with them.
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
    """Cost of training on some tokens; None where the part's figure is not known."""

    days: float
    dollars: float | None
    kwh: float | None


@dataclass(frozen=True)
class Answer:
    """A point and its best plan; where there is none, why. devices: of the cluster. software_us,
    software_bytes: the step and the peak of the same layout under another stack, None where that
    was not asked; where no plan fits, of the layout that the pins and defaults give. need_bytes: of
    a device, where no plan fits into its memory, by the leanest one; else 0."""

    point: Point
    step: Step | None
    why: str = ""
    part: Part = Part()
    software_us: float | None = None
    software_bytes: float | None = None
    need_bytes: float = 0.0

    @property
    def usable_bytes(self) -> float:
        """Return what a plan may use of a device."""
        return usable_bytes(self.point.cluster)

    @property
    def price_per_hour(self) -> float | None:
        """Return US dollars of all devices for an hour, None where the part's are not known."""
        price = self.part.price_per_hour
        return None if price is None else price * self.devices

    @property
    def devices(self) -> int:
        """Return the number of devices of the cluster."""
        return self.point.cluster.num_devices

    def budget(self, tokens: float) -> Budget | None:
        """Return the cost of training on a number of tokens; None where nothing fits."""
        if self.step is None:
            return None
        seconds = tokens / self.step.tokens_per_s
        hours = seconds / 3600 * self.devices
        price, watts = self.part.price_per_hour, self.part.watts
        dollars = None if price is None else hours * price
        return Budget(seconds / SECONDS_A_DAY, dollars, watts and hours * watts / 1e3)

    def rank(self, objective: str) -> tuple[float, ...]:
        """Return what the objective wants to be small: seconds, dollars or kWh a token, or bytes;
        for hardware the devices, then their price, then the time. Infinite where nothing fits, or a
        figure is not known."""
        found = self.budget(1.0)
        if self.step is None or found is None:
            return (INF,)
        by = {
            "time": (found.days,),
            "cost": (found.dollars,),
            "energy": (found.kwh,),
            "memory": (self.step.peak_bytes,),
            "hardware": (self.devices, self.price_per_hour, found.days),
        }
        return tuple(INF if value is None else value for value in by[objective])


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
    peak = part.peak_flops_per_s and part.peak_flops_per_s * point.matmul_factor
    devices = point.cluster.num_devices
    return Step(
        plan,
        timeline.step_us,
        gap,
        rate,
        None if peak is None else rate * flops_per_token / devices / peak,
        peak_bytes,
        usable_bytes(point.cluster),
        shares_of(model, timeline, point.cluster, mesh),
    )
