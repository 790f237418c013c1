"""Published throughput and memory of InternEvo on A100s against predictions; no GPU needed.

    python benchmarks/published_internevo.py [times] [memory]

data/published_internevo_rows.csv: tokens a second and card of a 7B model on 8 to 1,024 A100s, four
RoCE links of 100 Gb/s a node, tp of 1 and 2, ZeRO 1 over all data ranks (zero_ranks of -1) or over
those of a node (InternLM/InternEvo, doc/en/train_performance.md; rows that two tables repeat are
here once). data/published_internevo_memory.csv: memory of 7B and 20B models on 3 to 16 A800s from
the same page, micro-batches of one row, full recomputation, ZeRO 1 or PyTorch's FSDP.

Predictions are of the program of the plan that the layout is pinned to, and of the profile
internevo-2023. Nothing is read off these rows.
"""

import argparse
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from published_fsdp import spearman, summary
from published_grid import read_rows
from published_megatron import llama_sizes, traced

from meshwright.ir.plan import Plan
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.planner.simulate.predict import predict
from meshwright.planner.software.memory import peak_bytes
from meshwright.planner.software.profile import Software, read_software
from meshwright.planner.software.step import step_us

ROWS = Path(__file__).parent / "data" / "published_internevo_rows.csv"
MEMORY = ROWS.with_name("published_internevo_memory.csv")
SEQ, GIB, CARD_GIB = 2048, 2**30, 80
# configs/7B_sft.py and configs/_base_/models/internlm_20B.py: layers and features; as many heads of
# keys as of queries, and 8/3 as many features in between, up to a multiple of 256.
SIZES = {"7b": (32, 4096, 11008), "20b": (60, 5120, 13824)}
# Of a device between nodes: four links of 100 Gb/s for eight of them, at the catalogue's share.
OUTER_BYTES_PER_S = 0.8 * 4 * 12.5e9 / 8
# Micro-batches of a step in the memory test.
MICRO_BATCHES = 4


@dataclass(frozen=True)
class Scored:
    """A row and its predictions: seconds of a step."""

    row: dict[str, str]
    seconds: float
    pinned: float
    there: float


def model_of(name: str) -> tuple[str, str]:
    """Return a preset and its changes."""
    layers, dim, ffn = SIZES[name]
    return "llama-7b", llama_sizes(layers, dim, dim // 128, ffn, 103168)


def cluster_of(gpus: int) -> Cluster:
    """Return nodes of eight A100s on that network, with room for whatever ran."""
    per_node = min(gpus, 8)
    found = parse_cluster(f"a100:{per_node}" + (f"x{gpus // per_node}" if gpus > 8 else ""))
    outer = (
        replace(level, name="roce", bytes_per_s=OUTER_BYTES_PER_S) for level in found.levels[1:]
    )
    device = replace(found.device, memory_bytes=10**13)
    return replace(found, device=device, levels=(found.levels[0], *outer))


def plan_of(row: dict[str, str]) -> tuple[Plan, Cluster]:
    """Pin a row's layout."""
    gpus, tp, zero = (int(row[key]) for key in ("gpus", "tp", "zero_ranks"))
    rows, count = int(row["micro_batch"]), int(row["micro_batches"])
    ranks = gpus // tp
    dp = min(zero, ranks) if zero > 0 else ranks
    pins = Pins(
        pp=1, rep=ranks // dp, dp=dp, tp=tp, micro_batch=rows, zero=1, precision="master",
        recompute="all" if row["recompute_all"] == "True" else "none", reduce_dtype="bf16",
        shard_weights=int(tp > 1), shard_sequence=0 if tp > 1 else None,
    )  # fmt: skip
    cluster, model = cluster_of(gpus), traced(*model_of("7b"))
    return make_plan(model, cluster, seq=SEQ, global_batch=ranks * rows * count, pins=pins), cluster


def predicted(row: dict[str, str]) -> Scored:
    """Price a row's layout, as our program and as that stack runs it."""
    plan, cluster = plan_of(row)
    tokens = SEQ * int(row["micro_batch"]) * int(row["micro_batches"]) / int(row["tp"])
    there = step_us(plan, cluster, read_software("internevo-2023")) / 1e6
    seconds = tokens / float(row["tokens_per_gpu_s"])
    return Scored(row, seconds, predict(plan, cluster).step_us / 1e6, there)


def cuts_of(model: str, stages: int) -> str | None:
    """Return the first piece of each stage but the first: all have as many layers, and of those
    left over the last ones one more each (internlm/solver/pipeline_utils.py, partition_uniform)."""
    per, left = divmod(SIZES[model][0], stages)
    starts = [per * n + max(0, n - (stages - left)) for n in range(1, stages)]
    return ",".join(str(1 + 2 * start) for start in starts) or None


def memory_plan_of(row: dict[str, str]) -> tuple[Plan, Cluster, Software]:
    """Pin the layout of a row of the memory test."""
    gpus, tp, pp = (int(row[key]) for key in ("gpus", "tp", "pp"))
    dp, whole = gpus // (tp * pp), row["fsdp"] == "True"
    pins = Pins(
        pp=pp, dp=dp, tp=tp, micro_batch=1, zero=(3 if whole else 1) if dp > 1 else 0,
        recompute="all", precision="master", reduce_dtype="bf16", schedule="1f1b",
        shard_weights=int(tp > 1), shard_sequence=0 if tp > 1 else None,
        cuts=cuts_of(row["model"], pp),
    )  # fmt: skip
    cluster, model = cluster_of(gpus), traced(*model_of(row["model"]))
    plan = make_plan(model, cluster, seq=SEQ, global_batch=dp * MICRO_BATCHES, pins=pins)
    software = read_software("internevo-2023")
    # fsdp_optimizer.py copies gradients to float32 and flattens none.
    return plan, cluster, replace(software, flat_bytes=software.flat_bytes - 2 * whole)


def show_times() -> None:
    found = []
    for row in read_rows(ROWS):
        found.append(r := predicted(row))
        print(*row.values(), f"{r.seconds:.3f} {r.pinned:.3f} {r.there:.3f} "
              f"{r.there / r.seconds - 1:+.1%}", flush=True)  # fmt: skip
    print("| rows | rows | median error | mean | worst | signed median |\n|" + "---|" * 6)
    ways = {"pinned plan": lambda r: r.pinned, "internevo-2023": lambda r: r.there}
    for name, way in ways.items():
        print(summary(name, [way(r) / r.seconds - 1 for r in found]))
    for name, way in ways.items():
        rates = [[1 / r.seconds for r in found], [1 / way(r) for r in found]]
        print(f"Spearman of the step, {name}: {spearman(*rates):.3f}")
    show_regret(found)


def show_regret(found: list[Scored]) -> None:
    """Print the time of the layout ranked first over that of the fastest, less 1, by cards."""
    groups = defaultdict(list)
    for r in found:
        if r.row["table"] == "throughput":
            groups[int(r.row["gpus"])].append(r)
    for gpus, group in groups.items():
        first = min(group, key=lambda r: r.there)
        print(f"{gpus} cards: {first.seconds / min(r.seconds for r in group) - 1:.1%}")


def show_memory() -> None:
    errors = []
    for row in read_rows(MEMORY):
        plan, cluster, software = memory_plan_of(row)
        card = replace(cluster.device, memory_bytes=CARD_GIB * GIB)
        gib = peak_bytes(plan, replace(cluster, device=card), software) / GIB
        errors.append(gib / float(row["memory_gb"]) - 1)
        print(*row.values(), f"{gib:.1f} {errors[-1]:+.1%}", flush=True)
    print("| rows | rows | median error | mean | worst | signed median |\n|" + "---|" * 6)
    print(summary("memory", errors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", default=["times", "memory"])
    for name in parser.parse_args().which:
        {"times": show_times, "memory": show_memory}[name]()


if __name__ == "__main__":
    main()
