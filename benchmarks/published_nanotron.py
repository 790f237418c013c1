"""Published throughput and memory of nanotron on H100s against predictions; no GPU needed.

    python benchmarks/published_nanotron.py [--every N] [--rows FILE]

data/published_nanotron_rows.csv: runs of Llamas of 1B to 80B on 8 to 512 H100s of a cloud, 4,096
tokens a row and 256 rows a step, in bf16 with sums of gradients in float32, without recomputation
(huggingface.co/spaces/nanotron/ultrascale-playbook, benchmarks_interactive.html, Apache 2.0; runs
that it draws as crashed, and those of other batches, are left out).

Predictions are of the program of the plan that a layout is pinned to, and of the profile
nanotron-2025 on nodes that a cloud fabric joins. Its constants were read off the rows of 1B and 3B;
off those of 8B and 80B nothing was.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator
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
from meshwright.planner.software.memory import peak_bytes
from meshwright.planner.software.profile import Software, read_software
from meshwright.planner.software.step import step_us

ROWS = Path(__file__).parent / "data" / "published_nanotron_rows.csv"
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
# The host's time of a layer in us, by tp, in runs with pipeline stages on several nodes. It was
# read off the rows of 1B and 3B and does not depend on the micro-batch. These runs used a later
# version of the code (scripts/scaling_benchmarks.py), which gathers the inputs of split layers
# again in backward and keeps fewer of them gathered.
LATER_US = {1: 4450.0, 2: 8200.0, 4: 13000.0, 8: 21000.0, 16: 46000.0, 32: 133000.0}


@dataclass(frozen=True)
class Scored:
    """A row and its predictions: seconds of a step, GiB of a device."""

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
    until what they multiply passes its share, the head's share included."""
    layers, dim, _, ffn = SIZES[row["model"]]
    stages = int(row["pp"])
    costs = [float(4 * dim * dim + 3 * ffn * dim)] * layers + [float(VOCAB * dim)]
    sums, counts, stage = list(accumulate(costs)), [0] * stages, 0
    for reached in sums[:-1]:
        counts[stage] += 1
        stage += reached > sums[-1] * (stage + 1) / stages
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
    """Return the profile of a row's run. Where there are stages, a micro-batch's gradients of bf16
    are there beside what the others keep."""
    if row["pp"] == "1":
        return software
    if row["nodes"] == "1":
        return replace(software, grad_bytes=6)
    return replace(
        software,
        grad_bytes=6,
        gathers_again=True,
        keeps_gathered=2,
        layer_us=LATER_US[int(row["tp"])],
    )


def predicted(row: dict[str, str], software: Software) -> Scored:
    """Price a row's layout, as our program and as that stack runs it."""
    plan, cluster = plan_of(row)
    software = software_of(row, software)
    there = step_us(plan, cluster, software) / 1e6
    card = replace(cluster, device=replace(cluster.device, memory_bytes=CARD_GIB * GIB))
    gib = peak_bytes(plan, card, software) / GIB
    tokens = SEQ * int(row["dp"]) * int(row["micro_batch"]) * int(row["accumulation"])
    seconds = tokens / 8 / int(row["nodes"]) / float(row["tokens_per_s_gpu"])
    prediction = predict(plan, cluster)
    flop_s = float(dict(plan.costs)["predicted_matmul_rate_share"]) * prediction.step_us / 1e6
    return Scored(row, seconds, prediction.step_us / 1e6, there, gib, flop_s)


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
    "no pipeline": lambda row: row["pp"] == "1",
    "pipeline, one node or ZeRO 1": lambda row: (
        row["pp"] != "1" and (row["nodes"] == "1" or row["zero"] == "1")
    ),
    "pipeline, ZeRO 0 on several nodes": lambda row: (
        row["pp"] != "1" and row["nodes"] != "1" and row["zero"] == "0"
    ),
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
    given = parser.parse_args()
    rows, software = read_rows(given.rows), read_software(PROFILE)
    found = list(priced(rows[:: given.every], software))
    constant = statistics.median(r.flop_s / r.seconds for r in found if r.row["model"] in READ)
    print(f"\nof {' and '.join(READ)}: constant {constant:.1%}")
    print("| rows | rows | median error | mean | worst | signed median |\n|" + "---|" * 6)
    for models in (READ, [model for model in SIZES if model not in READ]):
        some = [r for r in found if r.row["model"] in models]
        for kind, has in KINDS.items():
            if these := [r for r in some if has(r.row)]:
                show(f"{' and '.join(models)}, {kind}", these, constant)
        if some:
            show(f"{' and '.join(models)}, all", some, constant)
            rates = [r.flop_s / r.seconds for r in some], [r.flop_s / r.there for r in some]
            print(f"Spearman of the share reached, {' and '.join(models)}: {spearman(*rates):.3f}")
    show_regret(found)


def show_regret(found: list[Scored]) -> None:
    """Print the time of the layout ranked first over that of the fastest, less 1, by model and
    nodes, of layouts without a pipeline and of all."""
    groups = defaultdict(list)
    for r in found:
        groups[r.row["model"], int(r.row["nodes"])].append(r)
    print("| model, nodes | layouts | no pipeline | all |\n|---|---|---|---|")
    for (model, nodes), group in sorted(groups.items()):
        flat = [r for r in group if KINDS["no pipeline"](r.row)]
        shown = " | ".join(f"{regret(some):.1%}" if some else "-" for some in (flat, group))
        print(f"| {model}, {nodes} | {len(group)} | {shown} |")


def regret(group: list[Scored]) -> float:
    return min(group, key=lambda r: r.there).seconds / min(r.seconds for r in group) - 1


if __name__ == "__main__":
    main()
