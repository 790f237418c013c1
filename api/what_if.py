"""What-if queries: one model on many clusters, at many sizes, that nobody needs to own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .capturing import takes
from .demands import Cluster, Job, Say, check_kinds, cluster_of, silent
from .errors import one_class
from .here import at_hand
from .modules import Model, load_model
from .planning import (
    check_demands,
    check_positions,
    proven_capture,
    searching,
    trained_capture,
    usual_dtype,
)
from .plans import Plan

if TYPE_CHECKING:
    from meshwright.ir.traced import Traced
    from meshwright.models import ModelSource
    from meshwright.planner.what_if.answers import Answer
    from meshwright.planner.what_if.ask import Search
    from meshwright.planner.what_if.edits import Point


@one_class
def what_if(
    model: Model,
    *,
    clusters: Sequence[Cluster | str],
    job: Job,
    sweeps: Sequence[str] = (),
    prices: Path | None = None,
    say: Say = silent,
    told: "Callable[[Answer], None]" = lambda _: None,
    least: bool = False,
    software: str = "",
    processes: int | None = None,
) -> "list[Answer]":
    """Search every cluster at every combination of the sweeps' values for its best plan.

    clusters: as `plan` takes them; `all` is a node of each part of the catalogue, `all:N` N cards
    of each. least: by growing number of devices, and of each size of the job none with more than
    the fewest that hold it; `all` is 1, 2, 4 and so on of each then. software: a
    profile under which the best layout of each point is priced, too: a built-in name, or a file.
    sweeps: NAME=VALUE,VALUE,... as `meshwright what-if --help` has them; they replace what the
    cluster and the job say. prices: a file of figures beside those that are built in. told: takes
    each answer as it is found. processes: as `plan` has them. Raises MeshwrightError for bad input;
    a point that nothing fits is an answer without a step.
    """
    from meshwright.planner.budget import EFFORTS
    from meshwright.planner.search.pins import parse_pins
    from meshwright.planner.software.profile import read_software
    from meshwright.planner.what_if.ask import Search
    from meshwright.planner.what_if.prices import read_prices

    check_kinds(job)
    asked, source = _points(clusters, job, sweeps, say, least), load_model(model)
    pins, read = parse_pins(job.pin_texts), read_prices(prices)
    other = read_software(software) if software else None
    at_once = searching(processes)
    for point in asked:
        check_demands(replace(job, seq=point.seq, global_batch=point.global_batch))
        check_positions(source, point.seq)

    def searched(traced: "Traced") -> "Search":
        return Search(traced, pins, read, EFFORTS[job.effort], other, at_once)

    if least:
        asked.sort(key=lambda point: point.cluster.num_devices)
    searches = _Searches(source, job, say, searched, asked)
    for point in asked:  # a length that the model does not take loses no answer
        searches.of(point)
    if least or not asked:
        return searches.least(told)
    return searches.all(told, at_once)


@dataclass
class _Searches:
    """The searches that answer points: one for each dtype, and lengths of rows, of a model."""

    source: "ModelSource"
    job: Job
    say: Say
    searched: "Callable[[Traced], Search]"
    asked: "list[Point]"
    made: "list[tuple[str, Traced, Search]]" = field(default_factory=list)

    def of(self, point: "Point") -> "Search":
        dtype = self.job.dtype or usual_dtype(point.cluster)
        for other, traced, search in self.made:
            if other == dtype and takes(traced, point.seq):
                return search
        job = replace(self.job, dtype=dtype, seq=point.seq)
        traced, _ = proven_capture(self.source, job, self.say)
        traced = trained_capture(traced, job, self.say)
        self.made.append((dtype, traced, self.searched(traced)))
        return self.made[-1][-1]

    def least(self, told: "Callable[[Answer], None]") -> "list[Answer]":
        """Answer points by growing number of devices, unless their sizes fit on fewer."""
        found: list[Answer] = []
        for number, point in enumerate(self.asked):
            if not _on_fewer(point, found):
                found.append(self._answer(number, self.say))
                told(found[-1])
        return found

    def all(self, told: "Callable[[Answer], None]", processes: int) -> "list[Answer]":
        """Answer all points, as many at once as there are processes; a single one with all."""
        from meshwright.planner.search.in_order import in_order

        found: list[Answer] = []
        count = len(self.asked)

        def one(number: int, tell: Say) -> "Answer":
            return self._answer(number, tell, alone=count > 1)

        def rates(number: int) -> tuple:
            point = self.asked[number]
            return point.cluster.rates.device, point.seq, point.global_batch

        for answer in in_order(one, count, processes, self.say, rates):
            found.append(answer)
            told(answer)
        return found

    def _answer(self, number: int, tell: Say, alone: bool = False) -> "Answer":
        """Search a point. alone: in one process, beside those of other points."""
        point = self.asked[number]
        where = f"point {number + 1} of {len(self.asked)}, {point.cluster.name}"
        tell(where)
        search = self.of(point)
        search = replace(search, processes=1) if alone else search
        return search.answer(point, partial(_said, tell, where))


def _on_fewer(point: "Point", found: "list[Answer]") -> bool:
    """Return whether a point's sizes fit on fewer devices."""
    sizes = point.seq, point.global_batch
    fitting = (a for a in found if a.step and (a.point.seq, a.point.global_batch) == sizes)
    return any(answer.devices < point.cluster.num_devices for answer in fitting)


def _said(say: Say, where: str, what: str) -> None:
    say(f"{where}: {what}")


@one_class
def priced(
    plan: Plan,
    *,
    clusters: Sequence[Cluster | str],
    sweeps: Sequence[str] = (),
    prices: Path | None = None,
    software: str = "",
) -> "list[Answer]":
    """Price a plan as it stands on other clusters, each of as many devices; nothing is searched.

    software: a profile under which its layout is priced, too: a built-in name, or a file.
    """
    from meshwright.planner.software.profile import read_software
    from meshwright.planner.what_if.ask import priced as price
    from meshwright.planner.what_if.prices import read_prices

    made = plan.decisions
    other = read_software(software) if software else None
    job = Job(seq=made.seq, global_batch=made.global_batch)
    return list(price(made, _points(clusters, job, sweeps, silent), read_prices(prices), other))


def _points(
    clusters: Sequence[Cluster | str],
    job: Job,
    sweeps: Sequence[str],
    say: Say,
    least: bool = False,
) -> "list[Point]":
    from meshwright.planner.what_if.edits import parse_sweep, points

    specs = specs_of(clusters, say, least)
    return points(specs, [parse_sweep(text) for text in sweeps], job.seq, job.global_batch)


def specs_of(
    clusters: Sequence[Cluster | str], say: Say = silent, least: bool = False
) -> list[str]:
    """Return the clusters by their own names: `auto` is this machine, `all` each part. least: all
    without a count is 1, 2, 4 and so on of each, up to a node."""
    from meshwright.planner.what_if.edits import specs_of_all

    at = (at_hand(cluster_of(cluster), say).spec for cluster in clusters)
    return [spec for given in at for spec in specs_of_all(given, least)]
