"""Published steps of MPT models under PyTorch's FSDP against predictions; no GPU needed.

    python benchmarks/published_fsdp.py [--every N]

data/published_fsdp_rows.csv: 209 rows of LLM Foundry's README (scripts/train/benchmarking), in bf16
on A100 and H100. A row whose hash is odd is scored, the others are there to find what is off.
Nothing is fitted to either half but the constant beside the score: the median share of the matmul
rate over the rows that are not scored.

Two predictions a row: the program of the plan that the layout is pinned to, and as that stack runs
it, the profile pytorch-eager: pointwise ops and gradient sums in kernels of their own, the loss on
whole logits. MPT is priced as GPT-2 of its sizes; ALiBi adds no work to fused
attention.
"""

import argparse
import csv
import hashlib
import statistics
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import meshwright
from meshwright.ir.traced import Traced
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.planner.simulate.software import read_software, step_us

ROWS = Path(__file__).parent / "data" / "published_fsdp_rows.csv"
ZERO = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}
A100_40_SHARE = 1555 / 2039  # of the memory bandwidth of the card of 80 GB, by their data sheets


@dataclass(frozen=True)
class Scored:
    """Seconds of a step. flop_s: at the rate of large matmuls."""

    gpu: str
    recompute: bool
    published: float
    pinned: float
    as_run: float
    flop_s: float


def is_scored(row: dict[str, str]) -> bool:
    return hashlib.sha256(",".join(row.values()).encode()).digest()[0] % 2 == 1


@cache
def traced(sizes: tuple[tuple[str, str], ...]) -> Traced:
    """GPT-2 with other sizes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mpt.toml"
        lines = ['preset = "gpt2"', "max_seq = 65536", *(f"{k} = {v}" for k, v in sizes)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return meshwright.trace(str(file), dtype="bf16")


def cluster_of(gpu: str, gpus: int) -> Cluster:
    """As many cards in nodes of eight, with room for whatever ran."""
    name = gpu.partition("_")[0]
    found = parse_cluster(f"{name}:{min(gpus, 8)}" + (f"x{gpus // 8}" if gpus > 8 else ""))
    device = replace(found.device, memory_bytes=10**13)
    if gpu == "a100_40gb":
        device = replace(device, hbm_bytes_per_s=device.hbm_bytes_per_s * A100_40_SHARE)
    return replace(found, device=device)


def predicted(row: dict[str, str]) -> Scored:
    """Price a row's layout, as our program and as that stack runs it."""
    names = {"dim": "hidden", "layers": "layers", "heads": "heads", "ffn": "ffn", "vocab": "vocab"}
    model = traced(tuple((ours, row[theirs]) for ours, theirs in names.items()))
    gpus, recompute = int(row["gpus"]), row["recompute_all"] == "True"
    cluster = cluster_of(row["gpu"], gpus)
    pins = Pins(
        pp=1, dp=gpus, tp=1, micro_batch=int(row["micro_batch"]), zero=ZERO[row["sharding"]],
        recompute="all" if recompute else "none", precision="master", reduce_dtype="bf16",
    )  # fmt: skip
    seq, rows = int(row["seq"]), int(row["global_batch"])
    plan = make_plan(model, cluster, seq=seq, global_batch=rows, pins=pins)
    costs = dict(plan.costs)
    pinned = float(costs["predicted_step_us"])
    share = float(costs["predicted_matmul_rate_share"])
    as_run = step_us(plan, cluster, read_software("pytorch-eager"))
    published = float(row["step_s"])
    seconds = pinned / 1e6, as_run / 1e6, share * pinned / 1e6
    return Scored(row["gpu"], recompute, published, *seconds)


def summary(name: str, errors: list[float]) -> str:
    sizes = [abs(e) for e in errors]
    return (
        f"| {name} | {len(sizes)} | {statistics.median(sizes):.1%} | {statistics.mean(sizes):.1%} "
        f"| {max(sizes):.1%} | {statistics.median(errors):+.1%} |"
    )


def spearman(a: list[float], b: list[float]) -> float:
    ranks = [[sorted(x).index(v) for v in x] for x in (a, b)]
    return statistics.correlation(*ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="price each N-th row of either half")
    every = parser.parse_args().every
    with ROWS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    halves: dict[bool, list[Scored]] = defaultdict(list)
    for half in (False, True):
        for row in [row for row in rows if is_scored(row) is half][::every]:
            halves[half].append(predicted(row))
            print(row["model"], row["gpu"], row["gpus"], row["seq"], halves[half][-1], flush=True)
    constant = statistics.median(r.flop_s / r.published for r in halves[False])
    print(f"\nconstant share of the matmul rate, of the other half: {constant:.1%}")
    print("| scored rows | rows | median error | mean | worst | signed median |")
    print("|---|---|---|---|---|---|")
    scored = halves[True]
    kinds = [
        (f"{gpu}, recompute {re}", gpu, re)
        for gpu in sorted({r.gpu for r in scored})
        for re in (False, True)
    ]
    for label, gpu, recompute in [("all", "", None), *kinds]:
        some = [r for r in scored if not gpu or (r.gpu, r.recompute) == (gpu, recompute)]
        if some:
            print(summary(f"{label}: pinned plan", [r.pinned / r.published - 1 for r in some]))
            print(summary(f"{label}: as run", [r.as_run / r.published - 1 for r in some]))
            print(
                summary(f"{label}: constant", [r.flop_s / constant / r.published - 1 for r in some])
            )
    share = [r.flop_s / r.published for r in scored]
    for name, seconds in (("pinned plan", "pinned"), ("as run", "as_run")):
        found = spearman(share, [r.flop_s / getattr(r, seconds) for r in scored])
        print(f"Spearman of the share reached, {name}: {found:.3f}")


if __name__ == "__main__":
    main()
