"""Points asked one after another: searched, or a given plan priced."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from meshwright.ir.capture.collector import rarely_collected
from meshwright.ir.errors import InfeasibleError, PlanError
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced

from ..budget import SearchBudget
from ..hardware.cluster import Cluster
from ..hardware.usable import usable_bytes
from ..search.candidate_costs import CandidateCosts
from ..search.demands import check_pins
from ..search.make_plan import flops_per_token, make_plan
from ..search.memo import Memo
from ..search.pins import Pins, pins_for
from ..search.problem import Problem
from ..search.search import plan_of, search
from ..software.memory import peak_bytes
from ..software.profile import Software
from ..software.step import step_us
from ..units import gib
from .answers import Answer, Step, step_of
from .edits import Point
from .prices import Part, Prices
from .shape import Shape

Progress = Callable[[str], None]


class Theirs(TypedDict, total=False):
    """Fields of an answer that tell of another stack."""

    software_us: float
    software_bytes: float


@dataclass(frozen=True)
class Search:
    """Searches points of one model for their best plans; what two points share is made once.
    software: a stack under which the best layout of each is priced, too. processes: that search at
    once."""

    traced: Traced
    pins: Pins
    prices: Prices
    budget: SearchBudget
    software: Software | None = None
    processes: int = 1
    memo: Memo = field(default_factory=Memo, compare=False)

    @rarely_collected()
    def answer(self, point: Point, progress: Progress = lambda _: None) -> Answer:
        """Return the best plan of a point, or why there is none."""
        part = self.prices.of(point.cluster.device.name)
        try:
            step, theirs = self._best(point, part, progress)
            return Answer(point, step, part=part, **theirs)
        except PlanError as error:
            need = error.need_bytes if isinstance(error, InfeasibleError) else 0.0
            beside = self._pinned(point) if need else Theirs()
            return Answer(point, None, str(error), part, need_bytes=need, **beside)

    def _pinned(self, point: Point) -> Theirs:
        """Price the layout of the pins under the other stack, which may hold less than ours."""
        asked, rows = (self.traced, point.cluster), point.global_batch
        try:
            plan = make_plan(*asked, seq=point.seq, global_batch=rows, pins=self.pins)
        except PlanError:
            return {}
        return under(plan, point.cluster, self.software)

    def _best(self, point: Point, part: Part, progress: Progress) -> tuple[Step, Theirs]:
        """Return the best step, and what its layout takes under the other stack."""
        traced, cluster = self.traced, point.cluster
        pins = pins_for(traced, self.pins)
        check_pins(cluster, point.global_batch, traced.dtype, pins, search=True)
        problem = Problem(traced, cluster, point.seq, point.global_batch, pins, self.budget)
        costs = CandidateCosts(problem, self.memo)
        found = search(costs, progress, advise=False, processes=self.processes)
        best, c = found.best, found.best.candidate
        said = f"{c} micro_batches={c.num_microbatches}"
        made = best.model, best.timeline, c.mesh, best.peak_bytes
        step = step_of(said, point, *made, flops_per_token(traced, point.seq), part, found.gap)
        if self.software is None:
            return step, {}
        return step, under(plan_of(found, problem), cluster, self.software)


def under(plan: Plan, cluster: Cluster, software: Software | None) -> Theirs:
    """Return what an answer says of a layout under another stack."""
    if software is None:
        return {}
    asked = plan, cluster, software
    return {"software_us": step_us(*asked), "software_bytes": peak_bytes(*asked)}


def priced(
    plan: Plan, points: Sequence[Point], prices: Prices, software: Software | None = None
) -> Iterator[Answer]:
    """Price a plan as it stands on each point's cluster, which has as many devices. software: a
    stack under which its layout is priced, too."""
    shape = Shape(plan)
    with rarely_collected():
        for point in points:
            answer = _priced(shape, point, prices.of(point.cluster.device.name))
            if answer.step is not None or answer.need_bytes:
                answer = replace(answer, **under(plan, point.cluster, software))
            yield answer


def _unpriced(plan: Plan, point: Point) -> str:
    """Return why a plan cannot be priced at a point; "" where it can."""
    asked = {
        "devices": (plan.mesh.num_devices, point.cluster.num_devices),
        "seq": (plan.seq, point.seq),
        "global batch": (plan.global_batch, point.global_batch),
    }
    different = (
        f"{name}: the plan has {has}, the point {is_}"
        for name, (has, is_) in asked.items()
        if has != is_
    )
    return next(different, "")


def _priced(shape: Shape, point: Point, part: Part) -> Answer:
    cluster, plan = point.cluster, shape.plan
    if why := _unpriced(plan, point):
        return Answer(point, None, why, part)
    found = shape.on(cluster)
    most = usable_bytes(cluster)
    if found.peak_bytes > most:
        why = f"needs {gib(found.peak_bytes)} of {gib(most)} usable"
        return Answer(point, None, why, part, need_bytes=found.peak_bytes)
    said = f"{plan.mesh} micro_batch={plan.micro_batch} zero={plan.zero} {plan.schedule_name}"
    made = found.model, found.timeline, plan.mesh, found.peak_bytes
    step = step_of(said, point, *made, plan.flops_per_token, part)
    return Answer(point, step, part=part)
