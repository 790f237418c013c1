"""Published steps of MPT models under PyTorch's FSDP against predictions; no GPU needed.

    python benchmarks/published_fsdp.py [--every N]

data/published_fsdp_rows.csv: 209 rows of LLM Foundry's README (scripts/train/benchmarking), in bf16
on A100 and H100. A row whose hash is odd is scored. Of the others two things are read: the constant
that is scored beside, the median share of the matmul rate, and by card the shares of our rates that
the stack's attention and matmuls reach, with which they are off by least.

Four predictions a row: the program of the plan that the layout is pinned to; the profile
pytorch-eager, which compiles nothing and computes the loss on whole logits; the same with that
attention; and with norms that are a kernel each, as PyTorch's layer_norm is, and the shares of
attention and matmuls that are read for these. MPT is priced as GPT-2 of its sizes; ALiBi adds no
work to fused attention.
"""

import argparse
import csv
import hashlib
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TypeVar

import meshwright
from meshwright.ir.traced import Traced
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.planner.software.profile import read_software
from meshwright.planner.software.step import step_us

ROWS = Path(__file__).parent / "data" / "published_fsdp_rows.csv"
ZERO = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}
A100_40_SHARE = 1555 / 2039  # of the memory bandwidth of the card of 80 GB, by their data sheets


@dataclass(frozen=True)
class Scored:
    """Seconds of a step. eager: as that stack runs it. attention: more of that at half the rate of
    attention. norms: as it runs with norms that are a kernel each. matmul: more of that at half the
    rate of matmuls. flop_s: at the rate of large matmuls."""

    gpu: str
    seq: int
    recompute: bool
    published: float
    pinned: float
    eager: float
    attention: float
    norms: float
    matmul: float
    flop_s: float

    def fitted(self, share: float) -> float:
        """The step where attention reaches a share of our rate."""
        return self.eager + self.attention * (1 / share - 1)

    def with_kernels(self, shares: tuple[float, float]) -> float:
        """The same where norms are a kernel each and matmuls reach a share, too."""
        attention, matmul = shares
        return self.norms + self.attention * (1 / attention - 1) + self.matmul * (1 / matmul - 1)


Share = TypeVar("Share")
ATTENTION = [k / 20 for k in range(4, 21)]
MATMUL = [k / 100 for k in range(80, 106)]


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
    software = read_software("pytorch-eager")
    eager = step_us(plan, cluster, software) / 1e6
    slower = step_us(plan, cluster, replace(software, attention_share=0.5)) / 1e6
    kernels = replace(software, library_kernels=("norm",))
    norms = step_us(plan, cluster, kernels) / 1e6
    matmul = step_us(plan, cluster, replace(kernels, matmul_share=0.5)) / 1e6 - norms
    seconds = float(row["step_s"]), pinned / 1e6, eager, slower - eager, norms, matmul
    return Scored(row["gpu"], seq, recompute, *seconds, share * pinned / 1e6)


def fitted_shares(
    rows: list[Scored], way: Callable[[Scored, Share], float], shares: list[Share]
) -> dict[str, Share]:
    """By card, what a way has the least mean error with."""

    def off(card: str, share: Share) -> float:
        some = [r for r in rows if r.gpu == card]
        return statistics.mean(abs(way(r, share) / r.published - 1) for r in some)

    return {card: min(shares, key=partial(off, card)) for card in {r.gpu for r in rows}}


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
    shares = fitted_shares(halves[False], Scored.fitted, ATTENTION)
    both = fitted_shares(halves[False], Scored.with_kernels, list(product(ATTENTION, MATMUL)))
    print(f"\nof the other half: constant {constant:.1%}, attention's share {shares}; with norms "
          f"that of attention and matmuls {both}")  # fmt: skip
    print("| scored rows | rows | median error | mean | worst | signed median |")
    print("|---|---|---|---|---|---|")
    scored = halves[True]
    ways: dict[str, Callable[[Scored], float]] = {
        "pinned plan": lambda r: r.pinned,
        "pytorch-eager": lambda r: r.eager,
        "with its attention": lambda r: r.fitted(shares[r.gpu]),
        "with its kernels": lambda r: r.with_kernels(both[r.gpu]),
        "constant": lambda r: r.flop_s / constant,
    }
    kinds: dict[str, Callable[[Scored], bool]] = {
        "all": lambda r: True,
        "up to 8,192 tokens a row": lambda r: r.seq <= 8192,
        "longer rows": lambda r: r.seq > 8192,
        "A100": lambda r: r.gpu.startswith("a100"),
        "H100": lambda r: r.gpu.startswith("h100"),
    }
    for (kind, holds), (name, way) in product(kinds.items(), ways.items()):
        some = [way(r) / r.published - 1 for r in scored if holds(r)]
        print(summary(f"{kind}: {name}", some))
    reached = [r.flop_s / r.published for r in scored]
    for name, way in list(ways.items())[:-1]:
        found = spearman(reached, [r.flop_s / way(r) for r in scored])
        print(f"Spearman of the share reached, {name}: {found:.3f}")


if __name__ == "__main__":
    main()
