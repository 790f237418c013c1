"""How many what-if points a second: a plan priced as it stands, and searches.

    python benchmarks/what_if.py [--large] [--clusters] [--equal] [--only TEXT] [--processes N]

Each row says the seconds of a point once the model is captured, the first and the mean of all, how
many a second these are and those after the first, and the largest gap that a search printed. With
several processes the second answer may come with the first: --processes 1 tells what it takes.
--equal compares answers with those of `plan` instead.
"""

import argparse
import math
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import meshwright
from meshwright.ir.errors import InfeasibleError
from meshwright.planner.budget import EFFORTS
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins, parse_pins
from meshwright.planner.search.search import search_plan
from meshwright.planner.what_if.answers import Answer
from meshwright.planner.what_if.ask import Search, priced
from meshwright.planner.what_if.edits import Point, parse_sweep, points
from meshwright.planner.what_if.prices import read_prices

SEQ = 4096
ROUNDING = 1e-12  # of a step whose parts are summed in another order
FACTORS = ",".join(f"x{1 + k / 1000:g}" for k in range(1, 201))


@dataclass(frozen=True)
class Question:
    """A row: a model, its clusters, and what is swept over them."""

    name: str
    model: str
    rows: int
    clusters: tuple[str, ...]
    sweeps: tuple[str, ...]

    @property
    def points(self) -> list[Point]:
        """Return what is asked."""
        sweeps = [parse_sweep(text) for text in self.sweeps]
        return points(self.clusters, sweeps, SEQ, self.rows)


SEARCHED = (
    Question("7B, nodes", "llama-7b", 512, ("h200:8",), ("nodes=1,2,4,8",)),
    Question("7B, memory", "llama-7b", 64, ("h200:8",), ("device.memory_gb=80,100,120,141",)),
    Question("7B, parts", "llama-7b", 64, ("h200:8", "h100:8", "b200:8", "mi300x:8"), ()),
)
LARGE = (Question("70B, 1,024 devices", "llama-70b", 2048, ("h100:8x128", "h200:8x128"), ()),)
PARTS = ("h100:8", "h200:8", "b200:8", "mi300x:8")
MEMORIES = "device.memory_gb=x0.75,x1"
CLUSTERS = (
    Question("70B, 40 clusters", "llama-70b", 2048, PARTS, ("nodes=8,16,32,64,128", MEMORIES)),
)
EQUAL = (
    Question("7B, memory and rates", "llama-7b", 64, PARTS, (MEMORIES, "device.matmul=x0.8,x1")),
    Question("7B, links", "llama-7b", 64, ("h200:8",), ("link.nvlink.bandwidth=x0.1,x0.5,x1,x2",)),
)
PRICED = (
    Question("7B, links", "llama-7b", 64, ("h200:8",), (f"link.nvlink.bandwidth={FACTORS}",)),
    Question("7B, memory", "llama-7b", 64, ("h200:8",), (f"device.memory_gb={FACTORS}",)),
    Question("7B, matmul rates", "llama-7b", 64, ("h200:8",), (f"device.matmul={FACTORS}",)),
)


@dataclass(frozen=True)
class Taken:
    """Seconds from one answer to the next, and the largest gap among them."""

    seconds: list[float]
    gap: float


class _Clock:
    """Times answers as they come."""

    def __init__(self) -> None:
        self.seconds, self.gap, self._last = list[float](), 0.0, time.perf_counter()

    def __call__(self, answer: Answer) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        gap = answer.step.gap if answer.step else 0.0
        self.gap = max(self.gap, gap)
        if self.seconds[-1] > 1:
            said = f"{answer.point.cluster.name}: {self.seconds[-1]:.1f} s, gap {gap:.1%}"
            print(said, file=sys.stderr, flush=True)
        self._last = now

    @property
    def taken(self) -> Taken:
        return Taken(self.seconds, self.gap)


def _row(kind: str, name: str, taken: Taken) -> None:
    first, *after = taken.seconds
    mean = (first + sum(after)) / len(taken.seconds)
    rates = f"{1 / mean:,.4g}", f"{len(after) / sum(after):,.4g}"
    cells = kind, name, len(taken.seconds), f"{first:.4g}", f"{mean:.4g}", *rates
    gap = f"{taken.gap:.1%}" if kind == "searched" else ""
    print("| " + " | ".join(map(str, (*cells, gap))) + " |", flush=True)


def _priced(question: Question) -> Taken:
    traced = meshwright.trace(question.model, dtype="bf16")
    first, pins = question.points[0], parse_pins(["dp=8", "zero=3", "micro_batch=4"])
    sizes = {"seq": SEQ, "global_batch": question.rows}
    plan = make_plan(traced, first.cluster, **sizes, pins=pins)
    clock = _Clock()
    for answer in priced(plan, question.points, read_prices()):
        clock(answer)
    return clock.taken


def _searched(question: Question, processes: int) -> Taken:
    """Ask as the command does, its model's capture kept."""
    job = meshwright.Job(seq=SEQ, global_batch=question.rows, dtype="bf16", effort="fast")
    with suppress(meshwright.MeshwrightError):  # the capture is kept, whether a plan fits or not
        meshwright.plan(question.model, cluster="h200:8", job=replace(job, search=False))
    clock = _Clock()
    asked = {"job": job, "sweeps": question.sweeps, "processes": processes}
    meshwright.what_if(question.model, clusters=question.clusters, told=clock, **asked)
    return clock.taken


def _search(question: Question) -> Search:
    traced = meshwright.trace(question.model, dtype="bf16")
    return Search(traced, Pins(), read_prices(), EFFORTS["fast"])


def _different(question: Question) -> list[Point]:
    """Return the points whose answer is not what `plan` finds, searching each by itself."""
    search = _search(question)
    different = []
    for point in question.points:
        same = _equal(search.answer(point), point, search)
        print(f"{point.cluster.name}: {'equal' if same else 'different'}", file=sys.stderr)
        different += [] if same else [point]
    return different


def _equal(answer: Answer, point: Point, search: Search) -> bool:
    """Return whether `plan` searches the same, and predicts it but for rounding of sums."""
    sizes = {"seq": point.seq, "global_batch": point.global_batch}
    try:
        plan, found, _ = search_plan(
            search.traced, point.cluster, **sizes, pins=search.pins, budget=search.budget
        )
    except InfeasibleError:
        return answer.step is None
    if answer.step is None:
        return False
    best, said = found.best, (answer.step.step_us, answer.step.peak_bytes)
    costs = dict(plan.costs)
    predicted = costs["predicted_step_us"], costs["predicted_peak_bytes"]
    close = all(map(partial(math.isclose, rel_tol=ROUNDING), said, predicted))
    own = best.timeline.step_us, best.peak_bytes, found.gap
    return close and own == (*said, answer.step.gap)


def _compare(questions: list[Question]) -> None:
    print("| sweep | points | different from plan |\n|---|---|---|")
    for question in questions:
        cells = question.name, len(question.points), len(_different(question))
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def _named(questions: tuple[Question, ...], text: str) -> list[Question]:
    return [question for question in questions if text in question.name]


def main() -> None:
    """Print the table, or the comparison with `plan`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="70B on 1,024 devices, too")
    parser.add_argument("--clusters", action="store_true", help="70B on 40 clusters, too")
    parser.add_argument("--equal", action="store_true", help="compare 20 answers with plan's own")
    parser.add_argument("--processes", type=int, default=2, help="that search at once")
    parser.add_argument("--only", default="", metavar="TEXT", help="sweeps whose name has TEXT")
    asked = parser.parse_args()
    if asked.equal:
        _compare(_named(EQUAL, asked.only))
        return
    print("| speed | sweep | points | first, s | mean, s | a second | after the first | gap |")
    print("|---|---|---|---|---|---|---|---|")
    for question in _named(PRICED, asked.only):
        _row("priced", question.name, _priced(question))
    searched = SEARCHED + LARGE * asked.large + CLUSTERS * asked.clusters
    for question in _named(searched, asked.only):
        _row("searched", question.name, _searched(question, asked.processes))


if __name__ == "__main__":
    main()
