"""How many what-if points a second: a plan priced as it stands, and searches.

    python benchmarks/what_if.py [--large]

Each row says the processor seconds of a point once the model is captured, the mean and the first.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import meshwright
from meshwright.planner.budget import EFFORTS
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins, parse_pins
from meshwright.planner.what_if.answers import Answer
from meshwright.planner.what_if.ask import Search, priced
from meshwright.planner.what_if.edits import Point, parse_sweep, points
from meshwright.planner.what_if.prices import read_prices

SEQ = 4096
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
PRICED = (
    Question("7B, links", "llama-7b", 64, ("h200:8",), (f"link.nvlink.bandwidth={FACTORS}",)),
    Question("7B, memory", "llama-7b", 64, ("h200:8",), (f"device.memory_gb={FACTORS}",)),
    Question("7B, matmul rates", "llama-7b", 64, ("h200:8",), (f"device.matmul={FACTORS}",)),
)


def _seconds(answers: Iterator[Answer]) -> list[float]:
    """Processor seconds of each answer."""
    found, last = [], time.process_time()
    for _ in answers:
        now = time.process_time()
        found.append(now - last)
        last = now
    return found


def _row(kind: str, name: str, seconds: list[float]) -> None:
    mean = sum(seconds) / len(seconds)
    cells = kind, name, len(seconds), f"{seconds[0]:.4g}", f"{mean:.4g}", f"{1 / mean:,.4g}"
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def _priced(question: Question) -> list[float]:
    traced = meshwright.trace(question.model, dtype="bf16")
    first, pins = question.points[0], parse_pins(["dp=8", "zero=3", "micro_batch=4"])
    sizes = {"seq": SEQ, "global_batch": question.rows}
    plan = make_plan(traced, first.cluster, **sizes, pins=pins)
    return _seconds(priced(plan, question.points, read_prices()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="70B on 1,024 devices, too")
    large = parser.parse_args().large
    print("| speed | sweep | points | first, s | mean, s | a second |\n|---|---|---|---|---|---|")
    for question in PRICED:
        _row("priced", question.name, _priced(question))
    for question in SEARCHED + LARGE * large:
        traced = meshwright.trace(question.model, dtype="bf16")
        search = Search(traced, Pins(), read_prices(), EFFORTS["fast"])
        _row("searched", question.name, _seconds(map(search.answer, question.points)))


if __name__ == "__main__":
    main()
