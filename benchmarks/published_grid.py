"""Published layouts of a 176B model's trials on 384 A100s against predictions; no GPU needed.

    python benchmarks/published_grid.py [--every N] [--earlier]

data/published_grid_rows.csv: trials before the training of BLOOM (bigscience-workshop/bigscience,
train/tr11-176B-ml/chronicles-prequel.md, 2022-02-21 to 28): decoders of 176B to 206B, sequence
2048, tp x pp x dp x micro-batch under Megatron-DeepSpeed with full recomputation and ZeRO 1, with
the second step's time and nvidia-smi's memory, or that they ran out of it. --earlier: 26 trials of
the same page from 2022-02-17 to 21, on 80 to 384 cards, most with heads of 150 features; nothing is
read off these, and all are scored.

A row whose hash is odd is scored. Of the others two numbers are read: the constant that is scored
beside, the median share of the matmul rate, and the share of our matmuls' rate that the stack's
reach. Predictions are of the program of the plan that the layout is pinned to, and of the profile
megatron-deepspeed-2022, its time without and with that share; to its memory nothing is fitted.

Nodes have eight cards and four Omni-Path links of 100 Gb/s; the rate between nodes is what the
same people read over 16 nodes (experiments/bandwidth): 55 Gb/s of all_reduce, 108 on the wire.
The host waited for each kernel (CUDA_LAUNCH_BLOCKING), else runs on more than 20 nodes hung; what
that took is read off the page's trials with and without it, of 80 and 160 cards. Until IMPROVED the
hosts' PCIe and NUMA made all trials slower, by 1 to 5% as the page says.
"""

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from published_fsdp import is_scored, spearman, summary, traced

from meshwright.ir.plan import Plan
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.planner.simulate.predict import predict
from meshwright.planner.software.memory import peak_bytes
from meshwright.planner.software.profile import Software, read_software
from meshwright.planner.software.step import step_us

ROWS = Path(__file__).parent / "data" / "published_grid_rows.csv"
EARLIER = ROWS.with_name("published_grid_earlier_rows.csv")
SEQ, VOCAB = 2048, 250880
# Of a device between nodes: all_reduce over 64 ranks at 55 Gb/s puts 2 x 63 / 64 of it on the wire
# of a node, which eight cards share here.
OUTER_BYTES_PER_S = 55e9 / 8 * 2 * 63 / 64 / 8
GIB, CARD_GIB = 2**30, 80
# From here on gradients were summed in float32 beside those in bf16, and embeddings had a place of
# their own among the layers that stages share; from IMPROVED on the nodes' hosts were faster.
BF16, IMPROVED = "2022-02-28", "2022-02-25"
SHARES = [k / 100 for k in range(60, 101)]
# Of a step of 512 rows, micro-batches of one, a stage of eight layers: 91.04 of 97.20 Tflop/s on 80
# cards and 84.59 of 84.44 on 160, thus 3.2% on average.
BLOCKING_US = 19.0
SLOWER = 1.03


@dataclass(frozen=True)
class Scored:
    """A row and its predictions: seconds of a step, and bytes. matmul: more seconds of the profile
    at half the rate of matmuls. flop_s: at the rate of large matmuls."""

    row: dict[str, str]
    pinned: float
    there: float
    matmul: float
    flop_s: float
    pinned_bytes: float
    there_bytes: float

    @property
    def ran(self) -> bool:
        return bool(self.row["step_s"])

    @property
    def seconds(self) -> float:
        return float(self.row["step_s"])

    @property
    def gib(self) -> float:
        """What nvidia-smi showed; 0 where nothing is told."""
        return 0.0 if self.row["memory_gb"] in ("", "oom") else float(self.row["memory_gb"])

    def fitted(self, share: float) -> float:
        """The step where matmuls reach a share of our rate."""
        return self.there + self.matmul * (1 / share - 1)


MEMORIES: dict[str, Callable[[Scored], float]] = {
    "pinned plan": lambda r: r.pinned_bytes / GIB,
    "megatron-deepspeed-2022": lambda r: r.there_bytes / GIB,
}


def cluster_of(gpus: int) -> Cluster:
    """Nodes of eight A100s on that network, with room for whatever ran."""
    found = parse_cluster(f"a100:8x{gpus // 8}")
    inner, outer = found.levels
    outer = replace(outer, name="omni-path", bytes_per_s=OUTER_BYTES_PER_S, by_nodes=())
    device = replace(found.device, memory_bytes=10**13)
    return replace(found, device=device, levels=(inner, outer))


def cuts_of(row: dict[str, str]) -> str | None:
    """The first segment of each later stage: an embedding, two segments a layer, norm and head."""
    layers, stages = int(row["layers"]), int(row["pp"])
    per, less = -(-layers // stages), 0
    if row["date"] >= BF16 or layers == 106:
        per, less = (layers + 2) // stages, 1
    starts = [min(per * stage - less, layers) for stage in range(1, stages)]
    return ",".join(str(1 + 2 * start) for start in starts) or None


def plan_of(row: dict[str, str]) -> tuple[Plan, Cluster]:
    """Pin a row's layout."""
    names = {"dim": "hidden", "layers": "layers", "heads": "heads"}
    sizes = [(ours, row[theirs]) for ours, theirs in names.items()]
    model = traced((*sizes, ("ffn", str(4 * int(row["hidden"]))), ("vocab", str(VOCAB))))
    pp, dp, tp, micro_batch = (int(row[k]) for k in ("pp", "dp", "tp", "micro_batch"))
    pins = Pins(
        pp=pp, dp=dp, tp=tp, micro_batch=micro_batch, zero=1, recompute="all", cuts=cuts_of(row),
        precision="master", reduce_dtype="bf16", schedule="1f1b", outer="pp",
        shard_weights=1, shard_sequence=0,
    )  # fmt: skip
    cluster, rows = cluster_of(int(row["gpus"])), int(row["global_batch"])
    return make_plan(model, cluster, seq=SEQ, global_batch=rows, pins=pins), cluster


def software_of(row: dict[str, str]) -> Software:
    """The profile as it ran there."""
    found = replace(read_software("megatron-deepspeed-2022"), waits=True, kernel_us=BLOCKING_US)
    if row["date"] < BF16:
        return found
    return replace(found, grad_bytes=6, flat_bytes=0, copy_bytes=4)


def predicted(row: dict[str, str]) -> Scored:
    """Price a row's layout, as our program and as that stack runs it."""
    plan, cluster = plan_of(row)
    software, own = software_of(row), predict(plan, cluster)
    hosts = SLOWER if row["date"] < IMPROVED else 1.0
    there = hosts * step_us(plan, cluster, software) / 1e6
    slower = hosts * step_us(plan, cluster, replace(software, matmul_share=0.5)) / 1e6
    share = float(dict(plan.costs)["predicted_matmul_rate_share"])
    seconds = own.step_us / 1e6, there, slower - there, share * own.step_us / 1e6
    card = replace(cluster.device, memory_bytes=CARD_GIB * GIB)
    there_bytes = peak_bytes(plan, replace(cluster, device=card), software)
    return Scored(row, *seconds, own.peak_bytes, there_bytes)


def best_share(rows: list[Scored]) -> float:
    """The share of the matmul rate with the least mean error."""

    def off(share: float) -> float:
        return statistics.mean(abs(r.fitted(share) / r.seconds - 1) for r in rows if r.ran)

    return min(SHARES, key=off)


def groups_of(rows: Iterable[Scored]) -> list[list[Scored]]:
    """Rows of one model on one state of the machine, with a batch of about 2,048 rows."""
    found: dict[tuple, list[Scored]] = defaultdict(list)
    for r in rows:
        date = r.row["date"]
        if int(r.row["global_batch"]) > 2000:
            sizes = tuple(r.row[name] for name in ("layers", "hidden", "heads"))
            found[*sizes, (date >= IMPROVED) + (date >= BF16)].append(r)
    return [group for group in found.values() if sum(r.ran for r in group) > 2]


def regret(group: list[Scored], way: Callable[[Scored], float]) -> float:
    """Time of the layout that a way ranks first over that of the fastest, less 1. Of rows that take
    other batches the time of one counts."""
    ran = [r for r in group if r.ran]

    def each(seconds: float, r: Scored) -> float:
        return seconds / int(r.row["global_batch"])

    first = min(ran, key=lambda r: each(way(r), r))
    return each(first.seconds, first) / min(each(r.seconds, r) for r in ran) - 1


def show_times(scored: list[Scored], ways: dict[str, Callable[[Scored], float]]) -> None:
    print("| scored rows | rows | median error | mean | worst | signed median |\n|" + "---|" * 6)
    kinds: dict[str, Callable[[Scored], bool]] = {
        "all": lambda r: True,
        **{f"tp={n}": lambda r, n=n: r.row["tp"] == str(n) for n in (8, 4)},  # type: ignore[misc]
    }
    ran = [r for r in scored if r.ran]
    for (kind, holds), (name, way) in product(kinds.items(), ways.items()):
        errors = [way(r) / r.seconds - 1 for r in ran if holds(r)]
        if errors:
            print(summary(f"{kind}: {name}", errors))
    for name, way in ways.items():
        rates = [[1 / r.seconds for r in ran], [1 / way(r) for r in ran]]
        print(f"Spearman of the step, {name}: {spearman(*rates):.3f}")


def show_memory(scored: list[Scored], ways: dict[str, Callable[[Scored], float]]) -> None:
    print("| memory | rows | median error | mean | worst | signed median | ran, called infeasible "
          "| out of memory, called feasible |\n|" + "---|" * 8)  # fmt: skip
    for name, way in ways.items():
        errors = [way(r) / r.gib - 1 for r in scored if r.gib]
        never = sum(r.ran and way(r) > CARD_GIB for r in scored)
        fits = sum(not r.ran and way(r) <= CARD_GIB for r in scored)
        ran = sum(r.ran for r in scored)
        print(f"{summary(name, errors)} {never} of {ran} | {fits} of {len(scored) - ran} |")


def show_regret(rows: list[Scored], ways: dict[str, Callable[[Scored], float]]) -> None:
    print("| layers x features, heads, from | layouts | " + " | ".join(ways) + " |")
    print("|---|---|" + "---|" * len(ways))
    for group in groups_of(rows):
        row = group[0].row
        cells = [f"{regret(group, way):.1%}" for way in ways.values()]
        said = f"{row['layers']} x {row['hidden']}, {row['heads']}, {row['date']}"
        print(f"| {said} | {sum(r.ran for r in group)} | " + " | ".join(cells) + " |")


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def priced(rows: Iterable[dict[str, str]]) -> list[Scored]:
    """Price rows, and print each."""
    found = []
    for row in rows:
        found.append(r := predicted(row))
        print(*row.values(), f"{r.pinned:.1f} {r.there:.1f} {r.matmul:.1f}",
              f"{r.there_bytes / GIB:.1f}", flush=True)  # fmt: skip
    return found


def show_earlier() -> None:
    """Score the trials that nothing is read off."""
    found = priced(read_rows(EARLIER))
    ways: dict[str, Callable[[Scored], float]] = {
        "pinned plan": lambda r: r.pinned,
        "megatron-deepspeed-2022": lambda r: r.there,
    }
    show_times(found, ways)
    show_memory(found, MEMORIES)
    show_regret(found, ways)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="price each N-th row of either half")
    parser.add_argument("--earlier", action="store_true", help="score the trials before these")
    given = parser.parse_args()
    if given.earlier:
        return show_earlier()
    rows = read_rows(ROWS)
    halves = {
        half: priced([row for row in rows if is_scored(row) is half][:: given.every])
        for half in (False, True)
    }
    constant = statistics.median(r.flop_s / r.seconds for r in halves[False] if r.ran)
    share = best_share(halves[False])
    print(f"\nof the other half: constant {constant:.1%}, share of the matmul rate {share:.2f}\n")
    ways: dict[str, Callable[[Scored], float]] = {
        "pinned plan": lambda r: r.pinned,
        "megatron-deepspeed-2022": lambda r: r.there,
        "with its matmuls": lambda r: r.fitted(share),
        "constant": lambda r: r.flop_s / constant,
    }
    show_times(halves[True], ways)
    show_memory(halves[True], MEMORIES)
    print("rows of the other half that ran out of memory: GiB predicted",
          *(f"{r.there_bytes / GIB:.1f}" for r in halves[False] if not r.ran))  # fmt: skip
    del ways["constant"]  # which ranks nothing
    show_regret(halves[False] + halves[True], ways)


if __name__ == "__main__":
    main()
