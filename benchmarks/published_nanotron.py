"""Published throughput and memory of nanotron on H100s against predictions; no GPU needed.

    python benchmarks/published_nanotron.py [--every N] [--rows FILE | --unfit]

data/published_nanotron_rows.csv: runs of Llamas of 1B to 80B on 8 to 512 H100s of a cloud, 4,096
tokens a row and 256 rows a step, in bf16 with sums of gradients in float32, without recomputation
(huggingface.co/spaces/nanotron/ultrascale-playbook, benchmarks_interactive.html, Apache 2.0; runs
that it draws as crashed, and those of other batches, are left out). The number of a run's job, the
bandwidths that it read before its steps and whether the stack's pipelines had been fixed are of the
same runs (github.com/eyao600/Rapid-LLM, validation_scripts/huggingface_data/bench_final2_mfu2.csv).

Predictions are of the program of the plan that a layout is pinned to, and of the profile
nanotron-2025 on nodes that a cloud fabric joins; of memory on the first rank, which the stack wrote
its own of (logging/base.py, log_throughput). Its constants were read off the rows of 1B and 3B;
off those of 8B and 80B nothing was. Pipelines from before their fix are shown by themselves.

--unfit: layouts of data/published_nanotron_unfit.csv, which ran out of memory (the same file); each
is called feasible or not by its fullest rank.
"""

import argparse
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
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
from meshwright.planner.software.memory import rank_bytes
from meshwright.planner.software.profile import Software, read_software
from meshwright.planner.software.step import step_us

ROWS = Path(__file__).parent / "data" / "published_nanotron_rows.csv"
UNFIT = ROWS.with_name("published_nanotron_unfit.csv")
SEQ, GIB, VOCAB, CARD_GIB = 4096, 2**30, 131072, 80
# scripts/scaling_benchmarks.py: layers, features, heads and features in between.
SIZES = {
    "1B": (16, 2048, 32, 8192),
    "3B": (28, 3072, 32, 8192),
    "8B": (32, 4096, 32, 14336),
    "80B": (80, 8192, 64, 28672),
}
TIED = READ = ("1B", "3B")  # the models with one table, and those whose rows were read off
PROFILE = "nanotron-2025"
# Runs from the job LATER on were on another network where their reading of all_gather in GB/s,
# times the nodes, is below SLOW.
LATER, SLOW = 13840000, 600.0
# Of these runs, read off the rows of 1B and 3B: the latencies of their network, as hop_us, and the
# host's time of a layer in us by tp, whatever the micro-batch. Their code gathers the inputs of
# split layers again in backward, and keeps fewer of them gathered: 2. Where the device is behind
# the host, which cannot hand out again what another stream reads, or many micro-batches are on
# their way, it is 3, and 4 more shares.
SLOW_HOP_US = (2400.0, 2500.0)
SLOW_US = {1: 4450.0, 2: 8200.0, 4: 13000.0, 8: 21000.0, 16: 46000.0, 32: 95000.0}
FEW_GATHERED, MANY_GATHERED, MORE_COPIES = 2, 3, 4
# The device is behind where a layer's products take over half of the host's time at this rate.
BEHIND, PRODUCTS_FLOP_S = 0.5, 5e14


@dataclass(frozen=True)
class Scored:
    """A row and its predictions: seconds of a step, GiB of a device. flop_s: at the rate of large
    matmuls, of those of fp8 where the row's are."""

    row: dict[str, str]
    seconds: float
    pinned: float
    there: float
    gib: float
    flop_s: float


def model_of(row: dict[str, str]) -> tuple[str, str]:
    """Return a preset and its changes. Stages have the shared table of a small model twice."""
    tied = "tied = true\n" if row["model"] in TIED and row["pp"] == "1" else ""
    return "llama-7b", llama_sizes(*SIZES[row["model"]], VOCAB) + tied


def layers_of(row: dict[str, str]) -> list[int]:
    """Return how many layers each stage has (models/base.py, build_model): blocks go to a stage
    until what they multiply reaches its share, the head's share included."""
    layers, dim, _, ffn = SIZES[row["model"]]
    stages = int(row["pp"])
    costs = [float(4 * dim * dim + 3 * ffn * dim)] * layers + [float(VOCAB * dim)]
    sums, counts, stage = list(accumulate(costs)), [0] * stages, 0
    for reached in sums[:-1]:
        counts[stage] += 1
        stage += reached >= sums[-1] * (stage + 1) / stages
    return counts


def cuts_of(row: dict[str, str]) -> str | None:
    """Return the first piece of each stage but the first; None for one stage. Raises ValueError
    where a stage has nothing."""
    counts = layers_of(row)
    if len(counts) == 1:
        return None
    if 0 in counts[:-1]:
        raise ValueError("a stage has no layer")
    return ",".join(str(1 + 2 * n) for n in accumulate(counts[:-1]))


def cluster_of(row: dict[str, str]) -> Cluster:
    """Return nodes of eight H100s on a cloud fabric, with room for whatever ran."""
    nodes = int(row["nodes"])
    found = parse_cluster("h100:8" + (f"x{nodes},network=efa" if nodes > 1 else ""))
    return replace(found, device=replace(found.device, memory_bytes=10**13))


def as_run(row: dict[str, str], cluster: Cluster) -> Cluster:
    """Return a row's nodes with the network that the run was on. What it takes from layers that are
    split over nodes is in their pace."""
    if not is_slow(row) or int(row["tp"]) > 8:
        return cluster
    *inner, outer = cluster.levels
    return replace(cluster, levels=(*inner, replace(outer, hop_us=SLOW_HOP_US)))


def is_slow(row: dict[str, str]) -> bool:
    """Return whether a run was on the slow network, by the bandwidth that it read. Those that
    ran out of memory read none: of these it is pipelines and later runs on several nodes."""
    if "job" not in row:
        return row["nodes"] != "1" and (row["pp"] != "1" or row["pipeline_fixed"] == "1")
    reading = int(row["nodes"]) * float(row["all_gather_gb_s"])
    return row["nodes"] != "1" and int(row["job"]) >= LATER and reading < SLOW


def plan_of(row: dict[str, str]) -> tuple[Plan, Cluster]:
    """Pin a row's layout."""
    pp, dp, tp, rows, count = (
        int(row[key]) for key in ("pp", "dp", "tp", "micro_batch", "accumulation")
    )
    pins = Pins(
        pp=pp, dp=dp, tp=tp, micro_batch=rows, zero=int(row["zero"]), recompute="none",
        precision="master", reduce_dtype="f32", schedule="1f1b", cuts=cuts_of(row),
        shard_weights=int(tp > 1), shard_sequence=0 if tp > 1 else None,
        price=1e-6 if tp > 1 else None,
    )  # fmt: skip
    cluster, model = cluster_of(row), traced(*model_of(row))
    return make_plan(model, cluster, seq=SEQ, global_batch=dp * rows * count, pins=pins), cluster


def software_of(row: dict[str, str], software: Software) -> Software:
    """Return the profile of a row's run."""
    if not is_slow(row):
        return software
    pace = SLOW_US[int(row["tp"])]
    return replace(software, gathers_again=True, keeps_gathered=FEW_GATHERED, layer_us=pace)


def held_gib(row: dict[str, str], plan: Plan, cluster: Cluster, software: Software) -> list[float]:
    """Return the GiB that a card of each pp rank holds in a row's run; what waits for another
    stream is handed out again where a card has no more."""
    own = software_of(row, software)
    least = ranks_gib(plan, cluster, own)
    if not is_slow(row) or row["tp"] == "1" or not hands_out_late(row):
        return least
    copies = own.kept_copies + MORE_COPIES
    waiting = replace(own, keeps_gathered=MANY_GATHERED, kept_copies=copies)
    most = ranks_gib(plan, cluster, waiting)
    return [min(m, max(found, CARD_GIB)) for found, m in zip(least, most, strict=True)]


def hands_out_late(row: dict[str, str]) -> bool:
    """Return whether the device is behind the host, or many micro-batches are on their way."""
    return int(row["pp"]) > 2 or products_us(row) > BEHIND * SLOW_US[int(row["tp"])]


def products_us(row: dict[str, str]) -> float:
    """Return what a device's products of a layer take: 6 flops a weight and token, and of causal
    attention 2 flops a position and feature in forward, 5 in backward."""
    _, dim, _, ffn = SIZES[row["model"]]
    flops = 6 * (4 * dim * dim + 3 * dim * ffn) + 7 * SEQ * dim
    return flops * SEQ * int(row["micro_batch"]) / int(row["tp"]) / PRODUCTS_FLOP_S * 1e6


def predicted(row: dict[str, str], software: Software) -> Scored:
    """Price a row's layout, as our program and as that stack runs it."""
    plan, cluster = plan_of(row)
    there = step_us(plan, as_run(row, cluster), software_of(row, software)) / 1e6
    gib = held_gib(row, plan, cluster, software)[0]
    tokens = SEQ * int(row["dp"]) * int(row["micro_batch"]) * int(row["accumulation"])
    seconds = tokens / 8 / int(row["nodes"]) / float(row["tokens_per_s_gpu"])
    prediction = predict(plan, cluster)
    flop_s = float(dict(plan.costs)["predicted_matmul_rate_share"]) * prediction.step_us / 1e6
    return Scored(row, seconds, prediction.step_us / 1e6, there, gib, flop_s)


def ranks_gib(plan: Plan, cluster: Cluster, software: Software) -> list[float]:
    """Return the GiB that a card of each pp rank holds."""
    card = replace(cluster, device=replace(cluster.device, memory_bytes=CARD_GIB * GIB))
    return [size / GIB for size in rank_bytes(plan, card, software)]


def is_faulty(row: dict[str, str]) -> bool:
    """Return whether a run was with the stack's pipelines as they were before their fix."""
    return row["pp"] != "1" and row["pipeline_fixed"] == "0"


def priced(rows: list[dict[str, str]], software: Software) -> Iterator[Scored]:
    for row in rows:
        try:
            r = predicted(row, software)
        except ValueError as error:
            print(*row.values(), error, flush=True)
            continue
        print(*row.values(), f"{r.seconds:.3f} {r.pinned:.3f} {r.there:.3f} "
              f"{r.there / r.seconds - 1:+.1%} {r.gib:.1f} "
              f"{r.gib / float(r.row['memory_gb']) - 1:+.1%}", flush=True)  # fmt: skip
        yield r


KINDS = {
    "no pipeline": lambda row: row["pp"] == "1" and not is_slow(row),
    "no pipeline, slow network": lambda row: row["pp"] == "1" and is_slow(row),
    "pipelines": lambda row: row["pp"] != "1" and not is_faulty(row),
    "pipelines before their fix": is_faulty,
}


def show(name: str, found: list[Scored], constant: float) -> None:
    """Print the errors of some rows, of each way to predict them."""
    ways = {
        "pinned plan": lambda r: r.pinned,
        PROFILE: lambda r: r.there,
        "constant": lambda r: r.flop_s / constant,
    }
    for way, of in ways.items():
        print(summary(f"{name}: {way}", [of(r) / r.seconds - 1 for r in found]))
    print(summary(f"{name}: memory", [r.gib / float(r.row["memory_gb"]) - 1 for r in found]))
    unfit = sum(r.gib > CARD_GIB for r in found)
    print(f"{name}: ran, called infeasible: {unfit} of {len(found)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="price each N-th row")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--unfit", action="store_true", help="layouts that ran out of memory")
    given = parser.parse_args()
    software = read_software(PROFILE)
    if given.unfit:
        show_unfit(read_rows(UNFIT)[:: given.every], software)
        return
    rows = read_rows(given.rows)
    found = list(priced(rows[:: given.every], software))
    read = (r for r in found if r.row["model"] in READ and not is_faulty(r.row))
    constant = statistics.median(r.flop_s / r.seconds for r in read)
    print(f"\nof {' and '.join(READ)}: constant {constant:.1%}")
    print("| rows | rows | median error | mean | worst | signed median |\n|" + "---|" * 6)
    for models in (READ, [model for model in SIZES if model not in READ]):
        show_models(models, [r for r in found if r.row["model"] in models], constant)
    show_regret([r for r in found if not is_faulty(r.row)])


def show_unfit(rows: list[dict[str, str]], software: Software) -> None:
    """Print how many of the layouts that ran out of memory are called feasible, by model."""
    asked, feasible = Counter[str](), Counter[str]()
    for row in rows:
        try:
            plan, cluster = plan_of(row)
        except ValueError as error:
            print(*row.values(), error, flush=True)
            continue
        gib = max(held_gib(row, plan, cluster, software))
        print(*row.values(), f"{gib:.1f}", flush=True)
        asked[row["model"]] += 1
        feasible[row["model"]] += gib <= CARD_GIB
    for model in SIZES:
        print(f"{model}: ran out of memory, called feasible: {feasible[model]} of {asked[model]}")


def show_models(models: Iterable[str], found: list[Scored], constant: float) -> None:
    """Print the errors of some models by kind of run, and of all whose pipelines were fixed."""
    names = " and ".join(models)
    for kind, has in KINDS.items():
        if some := [r for r in found if has(r.row)]:
            show(f"{names}, {kind}", some, constant)
    if some := [r for r in found if not is_faulty(r.row)]:
        show(f"{names}, all", some, constant)
        rates = [r.flop_s / r.seconds for r in some], [r.flop_s / r.there for r in some]
        print(f"Spearman of the share reached, {names}: {spearman(*rates):.3f}")


def show_regret(found: list[Scored]) -> None:
    """Print the time of the layout ranked first over that of the fastest, less 1, by model, nodes
    and network, of layouts without a pipeline and of all."""
    groups = defaultdict(list)
    for r in found:
        groups[r.row["model"], int(r.row["nodes"]), is_slow(r.row)].append(r)
    print("| model, nodes | layouts | no pipeline | all |\n|---|---|---|---|")
    for (model, nodes, slow), group in sorted(groups.items()):
        flat = [r for r in group if r.row["pp"] == "1"]
        shown = " | ".join(f"{regret(some):.1%}" if some else "-" for some in (flat, group))
        print(f"| {model}, {nodes}{', slow' * slow} | {len(group)} | {shown} |")


def regret(group: list[Scored]) -> float:
    return min(group, key=lambda r: r.there).seconds / min(r.seconds for r in group) - 1


if __name__ == "__main__":
    main()
