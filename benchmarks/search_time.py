"""Time, memory and gap of the search on large shapes, on this machine, without a GPU.

    python benchmarks/search_time.py [--effort E] [CASE ...]

Each case runs in a process of its own, tracing included. Prints one table row a case.
"""

import argparse
import multiprocessing
import resource
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """limit_s: the time that the case should take at most on two cores."""

    model: str
    cluster: str
    seq: int
    global_batch: int
    limit_s: float


CASES = {
    "7b-8": Case("llama-7b", "h200:8", 4096, 64, 15),
    "70b-128": Case("llama-70b", "h100:8x16", 4096, 512, 45),
    "70b-1024": Case("llama-70b", "h100:8x128", 4096, 2048, 90),
    "405b-16384": Case("llama-405b", "h100:8x2048", 8192, 2048, 480),
}


def measure(case: Case, effort: str) -> str:
    """A row of the table: total, processor and tracing seconds, peak memory, result."""
    from meshwright.ir.capture.export import trace
    from meshwright.models import load_model
    from meshwright.planner.budget import EFFORTS
    from meshwright.planner.hardware.cluster_file import parse_cluster
    from meshwright.planner.search.pins import parse_pins
    from meshwright.planner.search.search import search_plan

    started = time.perf_counter()
    source = load_model(case.model)
    traced = trace(source.build, source.name, "bf16", source.vocab_size)
    after = time.perf_counter()
    _, found, prediction = search_plan(
        traced,
        parse_cluster(case.cluster),
        seq=case.seq,
        global_batch=case.global_batch,
        pins=parse_pins(["precision=pure", "rounding=nearest"]),
        budget=EFFORTS[effort],
    )
    total = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return (
        f"| {case.model} on {case.cluster} | {total:.1f} | {time.process_time():.1f} | "
        f"{case.limit_s:.0f} | {after - started:.1f} | {peak:.2f} | {found.num_candidates} | "
        f"{found.num_simulated} | "
        f"{found.best.candidate} | {prediction.step_us / 1e6:.3f} | {found.gap:.1%} | "
        f"{found.num_placements} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--effort", default="best", help="fast, normal or best, the default")
    arguments = parser.parse_args()
    print(
        "| problem | s | CPU s | limit | of it tracing | GiB | plans | simulated | choice | step s "
        "| gap | prices |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    context = multiprocessing.get_context("spawn")
    for name in arguments.cases:
        with context.Pool(1) as pool:
            print(pool.apply(measure, (CASES[name], arguments.effort)), flush=True)


if __name__ == "__main__":
    main()
