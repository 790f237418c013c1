"""Published steps of NeMo and Megatron on H100s against predictions; no GPU needed.

    python benchmarks/published_megatron.py [--every N]

data/published_megatron_rows.csv: pretraining rows of NVIDIA's performance tables (NeMo releases
v25.01 to v25.03), in bf16, with the layout in the title; rows of fine-tuning are passed over. A row
whose hash is odd is scored; of the others the constant is read that is scored beside, the median
share of the matmul rate.

Two predictions a row: the program of the plan that the layout is pinned to, and the same under the
software profile megatron-2025. Gradients travel in bf16, nothing is computed again, stages have as
many layers each. Nemotron is priced as GPT-2 of its sizes, whose activation and positions take as
long. All rows ran: how many layouts the profile says do not fit is printed, too.
"""

import argparse
import csv
import re
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from published_fsdp import cluster_of, is_scored, spearman, summary

import meshwright
from meshwright.ir.traced import Traced
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.planner.software.memory import peak_bytes
from meshwright.planner.software.profile import read_software
from meshwright.planner.software.step import step_us

ROWS = Path(__file__).parent / "data" / "published_megatron_rows.csv"
# By how a title begins: preset and other sizes. Nemotron: arXiv 2402.16819 and 2406.11704.
_NEMOTRON = "vocab = 256000\nmax_seq = 4096\nkv_heads = 8\n"
MODELS = {
    "Llama 3.1 405b": ("llama-405b", ""),
    "Llama 3.1 70b": ("llama-70b", ""),
    "Llama 3.1 8b": ("llama-7b", ""),
    "NeMo Megatron": ("gpt-175b", ""),
    "Nemotron4 15b": ("gpt2", _NEMOTRON + "dim = 6144\nlayers = 32\nheads = 48\nffn = 24576\n"),
    "Nemotron4 340b": ("gpt2", _NEMOTRON + "dim = 18432\nlayers = 96\nheads = 96\nffn = 73728\n"),
}


@dataclass(frozen=True)
class Scored:
    """Seconds of a step. there: as that stack runs it. flop_s: at the rate of large matmuls.
    fits: whether a device has the memory that it takes there."""

    published: float
    pinned: float
    there: float
    flop_s: float
    fits: bool


@cache
def traced(preset: str, changes: str) -> Traced:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.toml"
        file.write_text(f'preset = "{preset}"\n{changes}', encoding="utf-8")
        return meshwright.trace(str(file), dtype="bf16")


def llama_sizes(layers: int, dim: int, heads: int, ffn: int, vocab: int) -> str:
    """Return changes of a Llama preset that has as many heads of keys as of queries."""
    sizes = {"layers": layers, "dim": dim, "ffn": ffn, "heads": heads, "kv_heads": heads}
    return "".join(f"{key} = {size}\n" for key, size in (sizes | {"vocab": vocab}).items())


def predicted(row: dict[str, str]) -> Scored:
    """Price a row's layout, as our program and as that stack runs it."""
    sizes = dict(re.findall(r"(\w+) ?= ?(\w+)", row["title"]))
    sizes |= dict(re.findall(r"(\w+)=(\S+)", row["overrides"]))
    name = next(name for name in MODELS if row["title"].startswith(name))
    layers = f"layers = {sizes['Layers']}\n" if "Layers" in sizes else ""
    pp, tp, cp = (int(sizes.get(axis, 1)) for axis in ("PP", "TP", "CP"))
    chunks = int(sizes["VP"]) if pp > 1 and "VP" in sizes else 1
    seconds = _seconds(
        name, layers, pp, tp, cp, chunks, int(sizes["MBS"]), int(row["gpus"]),
        int(row["global_batch"]), int(row["seq"]),
    )  # fmt: skip
    return Scored(float(row["step_s"]), *seconds)


@cache
def _seconds(
    name: str, layers: str, pp: int, tp: int, cp: int, chunks: int, micro_batch: int, gpus: int,
    rows: int, seq: int,
) -> tuple[float, float, float, bool]:  # fmt: skip
    preset, changes = MODELS[name]
    model = traced(preset, changes + layers)
    cluster = cluster_of("h100", gpus)
    dp = gpus // (pp * tp * cp)
    pins = Pins(
        pp=pp, dp=dp, tp=tp, cp=cp, micro_batch=micro_batch, zero=1 if dp * cp > 1 else 0,
        recompute="none", precision="master", reduce_dtype="bf16", shard_weights=int(tp > 1),
        schedule="interleaved" if chunks > 1 else "1f1b", chunks=chunks if chunks > 1 else None,
        cuts=cuts_of(model, pp * chunks),
    )  # fmt: skip
    plan = make_plan(model, cluster, seq=seq, global_batch=rows, pins=pins)
    costs = dict(plan.costs)
    pinned = float(costs["predicted_step_us"]) / 1e6
    software = read_software("megatron-2025")
    fits = peak_bytes(plan, cluster, software) <= cluster.device.memory_bytes
    there = step_us(plan, cluster, software) / 1e6
    return pinned, there, float(costs["predicted_matmul_rate_share"]) * pinned, fits


def cuts_of(model: Traced, stages: int) -> str | None:
    """Return the first instance of each stage but the first: all have as many layers, or the
    embedding and the head count as one each."""
    layers = len(model.segmented.instances) // 2 - 1
    if stages == 1 or (layers % stages and (layers + 2) % stages):
        return None
    ends = layers % stages != 0
    per = (layers + 2 * ends) // stages
    return ",".join(str(1 + 2 * (per * n - ends)) for n in range(1, stages))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="price each N-th row of either half")
    every = parser.parse_args().every
    with ROWS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if "Finetuning" not in row["title"]]
    halves: dict[bool, list[Scored]] = defaultdict(list)
    titles: dict[bool, list[str]] = defaultdict(list)
    for half in (False, True):
        for row in [row for row in rows if is_scored(row) is half][::every]:
            halves[half].append(predicted(row))
            titles[half].append(next(name for name in MODELS if row["title"].startswith(name)))
            print(row["title"], row["gpus"], halves[half][-1], flush=True)
    constant = statistics.median(r.flop_s / r.published for r in halves[False])
    print(f"\nof the other half: constant {constant:.1%}")
    print("| scored rows | rows | median error | mean | worst | signed median |")
    print("|---|---|---|---|---|---|")
    scored = halves[True]
    ways: dict[str, Callable[[Scored], float]] = {
        "pinned plan": lambda r: r.pinned,
        "megatron-2025": lambda r: r.there,
        "constant": lambda r: r.flop_s / constant,
    }
    for kind in ("all", *MODELS):
        for name, way in ways.items():
            some = [
                way(r) / r.published - 1
                for r, title in zip(scored, titles[True], strict=True)
                if kind in ("all", title)
            ]
            if some:
                print(summary(f"{kind}: {name}", some))
    reached = [r.flop_s / r.published for r in scored]
    print(f"do not fit: {sum(not r.fits for r in scored)} of {len(scored)} scored rows, all ran")
    for name, way in list(ways.items())[:-1]:
        found = spearman(reached, [r.flop_s / way(r) for r in scored])
        print(f"Spearman of the share reached, {name}: {found:.3f}")


if __name__ == "__main__":
    main()
