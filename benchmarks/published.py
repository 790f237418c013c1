"""Published step times against predictions, each layout pinned as published; no GPU needed.

    python benchmarks/published.py [kempner] [memory] [megatron]

Nothing is fitted to these rows: rates are the catalogue's. KempnerForge: H200, 4 a node on a board
that is assumed to have no switch, full recompute, pure bf16 (sweep of 2026-04-05): the plan that a
layout is pinned to, and beside it what that framework runs otherwise (kempnerforge.py). memory:
the peaks of these rows and of its weak scaling (2026-06-30) under the profile `kempnerforge-2026`.
Megatron-LM: DGX A100, fp16 with float32 masters
(here bf16 with float32 masters), Korthikanti et al. 2022, arXiv 2205.05198, table 5: as our
programs run the layout, and under the software profile `megatron-2022`.
"""

import argparse
import statistics
from dataclasses import dataclass, replace
from functools import cache

import kempnerforge

import meshwright
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.search.search import search
from meshwright.planner.simulate.predict import Prediction, predict
from meshwright.planner.software.memory import peak_bytes
from meshwright.planner.software.profile import read_software
from meshwright.planner.software.step import step_us


@dataclass(frozen=True)
class Row:
    """bs x accum of one data-parallel rank; tokens/s over all GPUs; peak in GiB."""

    number: int
    gpus: int
    model: str
    dp: int
    tp: int
    micro_batch: int
    accumulate: int
    tokens_per_s: float
    peak_gib: float


KEMPNER = (
    Row(1, 1, "llama-7b", 1, 1, 2, 4, 10471, 80.7),
    Row(2, 2, "llama-7b", 2, 1, 2, 4, 18728, 62.4),
    Row(3, 2, "llama-7b", 1, 2, 4, 2, 13163, 57.8),
    Row(4, 4, "llama-7b", 4, 1, 4, 2, 38983, 61.1),
    Row(5, 4, "llama-7b", 1, 4, 4, 2, 25135, 39.4),
    Row(6, 4, "llama-7b", 2, 2, 4, 2, 25980, 45.9),
    Row(7, 8, "llama-7b", 2, 4, 4, 2, 44299, 32.7),
    Row(8, 8, "llama-13b", 8, 1, 4, 4, 35405, 88.5),
    Row(9, 8, "llama-13b", 2, 4, 4, 4, 27345, 45.1),
    Row(10, 16, "llama-7b", 4, 4, 4, 2, 82988, 29.4),
    Row(11, 16, "llama-13b", 4, 4, 4, 4, 53814, 39.2),
    Row(12, 32, "llama-7b", 8, 4, 4, 2, 155917, 27.6),
    Row(13, 32, "llama-13b", 8, 4, 4, 4, 104309, 36.3),
    Row(14, 32, "llama-70b", 8, 4, 2, 4, 17657, 93.2),
)
# benchmarks/weak_scaling_160gpu, tp=4 in a node and FSDP between nodes, medians of 15 to 100 steps.
WEAK = tuple(
    Row(number, 4 * dp, model, dp, 4, rows, 4, tokens_per_s, gib)
    for number, model, rows, dp, tokens_per_s, gib in (
        (15, "llama-13b", 4, 2, 29860, 45.0),
        (16, "llama-13b", 4, 8, 110373, 36.2),
        (17, "llama-13b", 4, 16, 216507, 34.8),
        (18, "llama-13b", 4, 32, 423306, 34.0),
        (19, "llama-13b", 4, 40, 534644, 33.9),
        (20, "llama-70b", 2, 2, 3623, 128.5),
        (21, "llama-70b", 2, 8, 18688, 93.2),
        (22, "llama-70b", 2, 16, 35824, 86.8),
        (23, "llama-70b", 2, 24, 52190, 84.6),
        (24, "llama-70b", 2, 32, 69985, 83.6),
        (25, "llama-70b", 2, 40, 85571, 82.9),
    )
)
KEMPNER_SEQ = 4096
NOT_COMPILED = 8

# model, GPUs, pp, chunks of a stage, global batch, micro-batch, seconds with full recompute, with
# selective.
MEGATRON = (
    ("gpt-22b", 8, 1, 1, 4, 4, 1.42, 1.10),
    ("gpt-175b", 64, 8, 3, 64, 1, 18.13, 13.75),
    ("gpt-530b", 280, 35, 3, 280, 1, 49.05, 37.83),
    ("gpt-1t", 512, 64, 1, 512, 1, 94.42, 71.49),
)
MEGATRON_SEQ = 2048
# Passes over the scores that selective recompute adds to backward: scores, softmax, dropout again.
SCORES_AGAIN = 5


# As those runs had it: weights and moments in bf16 without masters.
PURE = Pins(precision="pure", rounding="nearest")


@cache
def traced(model: str) -> Traced:
    return meshwright.trace(model, dtype="bf16")


def kempner() -> None:
    print("| # | model | GPUs | layout | published tok/s | pinned plan | error | as run there | "
          "error | peak GiB pub/plan | largest doubt | free search | gain |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    pinned, there = [], []
    for row in KEMPNER:
        cluster = _four_a_node(row.gpus)
        plan, found = _kempner_plan(row, cluster)
        run_us = kempnerforge.step_us(plan, cluster, compiled=row.number != NOT_COMPILED)
        pinned.append(_tokens_per_s(row, found.step_us))
        there.append(_tokens_per_s(row, run_us))
        costs = CandidateCosts(
            Problem(traced(row.model), cluster, KEMPNER_SEQ, plan.global_batch, PURE)
        )
        free = search(costs).best
        print(
            f"| {row.number} | {row.model} | {row.gpus} | dp={row.dp} tp={row.tp} | "
            f"{row.tokens_per_s:,.0f} | {pinned[-1]:,.0f} | {_error(row, pinned[-1]):+.1%} | "
            f"{there[-1]:,.0f} | {_error(row, there[-1]):+.1%} | "
            f"{row.peak_gib} / {found.peak_bytes / 2**30:.1f} | {_doubt(found)} | "
            f"{free.candidate} | {found.step_us / free.timeline.step_us:.2f}x |",
            flush=True,
        )
    print()
    _summary("pinned plan", pinned)
    _summary("as run there", there)


def memory() -> None:
    """Peaks of both sweeps as run there, and steps of the later one."""
    print("| # | model | GPUs | layout | published GiB | pinned plan | as run there | error | "
          "published tok/s | as run there | error |\n" + "|---" * 11 + "|")  # fmt: skip
    errors: list[tuple[float, float]] = []
    for row in KEMPNER + WEAK:
        cluster = _four_a_node(row.gpus)
        plan, found = _kempner_plan(row, cluster)
        gib = peak_bytes(plan, cluster, kempnerforge.SOFTWARE) / 2**30
        run_us = kempnerforge.step_us(plan, cluster, compiled=row.number != NOT_COMPILED)
        tokens = _tokens_per_s(row, run_us)
        errors.append((gib / row.peak_gib - 1, _error(row, tokens)))
        print(
            f"| {row.number} | {row.model} | {row.gpus} | dp={row.dp} tp={row.tp} | "
            f"{row.peak_gib} | {found.peak_bytes / 2**30:.1f} | {gib:.1f} | {errors[-1][0]:+.1%} | "
            f"{row.tokens_per_s:,.0f} | {tokens:,.0f} | {errors[-1][1]:+.1%} |",
            flush=True,
        )
    for name, some in (("first sweep", errors[: len(KEMPNER)]), ("later", errors[len(KEMPNER) :])):
        for kind, of in zip(("memory", "tokens/s"), zip(*some, strict=True), strict=True):
            sizes = sorted(map(abs, of))
            print(f"{name}, {kind}: median error {statistics.median(sizes):.1%}, worst "
                  f"{sizes[-1]:.1%}, then {sizes[-2]:.1%}")  # fmt: skip


def _kempner_plan(row: Row, cluster: Cluster) -> tuple[Plan, Prediction]:
    """Weights over tp and gradients in float32 between ranks, as that framework has them."""
    pins = Pins(
        pp=1, dp=row.dp, tp=row.tp, micro_batch=row.micro_batch, recompute="all",
        zero=3 if row.dp > 1 else 0, shard_weights=1, reduce_dtype="f32",
        precision=PURE.precision, rounding=PURE.rounding,
    )  # fmt: skip
    rows = row.dp * row.micro_batch * row.accumulate
    plan = make_plan(traced(row.model), cluster, seq=KEMPNER_SEQ, global_batch=rows, pins=pins)
    return plan, predict(plan, cluster)


def _tokens_per_s(row: Row, step_us: float) -> float:
    return row.dp * row.micro_batch * row.accumulate * KEMPNER_SEQ / step_us * 1e6


def _error(row: Row, tokens_per_s: float) -> float:
    return tokens_per_s / row.tokens_per_s - 1


def _summary(name: str, predicted: list[float]) -> None:
    errors = [_error(*pair) for pair in zip(KEMPNER, predicted, strict=True)]
    some = [abs(e) for e in errors[:13]]
    published = [row.tokens_per_s for row in KEMPNER]
    per_gpu = [
        [tokens / row.gpus for tokens, row in zip(of, KEMPNER, strict=True)]
        for of in (published, predicted)
    ]
    print(
        f"{name}: rows 1 to 13: median error {statistics.median(some):.1%}, worst {max(some):.1%}; "
        f"row 14 {errors[13]:+.1%}; "
        f"Spearman over 14 rows, tokens/s a GPU: {_spearman(*per_gpu):.3f}"
    )


def _four_a_node(gpus: int) -> Cluster:
    return parse_cluster(f"h200-4gpu:{min(gpus, 4)}" + (f"x{gpus // 4}" if gpus > 4 else ""))


def _predicted(model: str, cluster: Cluster, seq: int, rows: int, pins: Pins) -> Prediction:
    plan = make_plan(traced(model), cluster, seq=seq, global_batch=rows, pins=pins)
    return predict(plan, cluster)


def _doubt(found: Prediction) -> str:
    """The largest term that is not matmul or attention, as a share of the step."""
    units = found.model.stages[0]
    m = found.model.num_microbatches
    phases = [phase for u in units for phase in (u.work.forward, u.work.backward)]
    terms = {
        "tp links": m * sum(p.collective_us for p in phases),
        "pointwise": m * sum(p.pointwise_us for p in phases),
        "dp links": m * sum(2 * u.gather_us + u.reduce_us for u in units),
    }
    name = max(terms, key=lambda key: terms[key])
    return f"{name} {terms[name] / found.step_us:.0%} of the step"


def _spearman(a: list[float], b: list[float]) -> float:
    """Rank correlation; no ties among these rows."""
    ranks = [[sorted(x).index(v) for v in x] for x in (a, b)]
    n = len(a)
    squares = sum((x - y) ** 2 for x, y in zip(*ranks, strict=True))
    return 1 - 6 * squares / (n * (n * n - 1))


def megatron() -> None:
    print("| model | GPUs | recompute | published s | predicted s | error | as run there | error | "
          "peak GiB |\n" + "|---" * 9 + "|")  # fmt: skip
    errors = []
    profile = read_software("megatron-2022")
    for model, gpus, pp, chunks, batch, micro_batch, full, selective in MEGATRON:
        nodes = gpus // 8
        cluster = parse_cluster("a100:8" + (f"x{nodes}" if nodes > 1 else ""))
        cluster = replace(cluster, device=replace(cluster.device, memory_bytes=10**12))
        for rule, measured in (("all", full), ("cheap", selective)):
            pins = Pins(
                pp=pp, dp=1, tp=8, micro_batch=micro_batch, recompute=rule, zero=0,
                schedule="interleaved" if chunks > 1 else "1f1b", precision="master",
                chunks=chunks if chunks > 1 else None, shard_weights=1,
            )  # fmt: skip
            plan = make_plan(
                traced(model), cluster, seq=MEGATRON_SEQ, global_batch=batch, pins=pins
            )
            found = predict(plan, cluster)
            there = profile
            if rule == "cheap":
                forward, backward = profile.attention_passes
                passes = forward, backward + SCORES_AGAIN
                there = replace(profile, attention_passes=passes)
            seconds = found.step_us / 1e6, step_us(plan, cluster, there) / 1e6
            errors.append([s / measured - 1 for s in seconds])
            print(
                f"| {model} | {gpus} | {rule} | {measured} | {seconds[0]:.2f} | "
                f"{errors[-1][0]:+.1%} | {seconds[1]:.2f} | {errors[-1][1]:+.1%} | "
                f"{found.peak_bytes / 2**30:.1f} |",
                flush=True,
            )
    for name, some in zip(("our programs", "as run there"), zip(*errors, strict=True), strict=True):
        sizes = [abs(e) for e in some]
        print(f"{name}: mean error {statistics.mean(sizes):.1%}, worst {max(sizes):.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", default=["kempner", "memory", "megatron"])
    for name in parser.parse_args().which:
        {"kempner": kempner, "memory": memory, "megatron": megatron}[name]()
        print()


if __name__ == "__main__":
    main()
