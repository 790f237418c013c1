"""Published throughput and memory of torchtitan against predictions; no GPU needed.

    python benchmarks/published_torchtitan.py [--rows FILE]

data/published_torchtitan_rows.csv: Llamas of 8B to 405B on 4 to 512 A100s, H100s, H200s and
MI300Xs under FSDP2 alone, with TP, CP and PP, in bf16 and Float8 (pytorch/torchtitan, docs and
benchmarks; pytorch/ao, torchao/float8/README.md; README.md beside this file has them by table).
memory_gib is what the allocator reserves, of the fullest rank.

Predictions are of the program of the plan that a layout is pinned to, and of the profile
torchtitan-2024. Nothing is read off these rows. Where the compiler is off the profile is not fused;
selective checkpointing of every second layer is the mean of a plan that keeps all and one that
keeps nothing. Float8 with a scale a row is priced as with one a tensor. Where the loss is compiled,
or its vocabulary split, it is another than the profile's.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from published_fsdp import spearman, summary
from published_grid import read_rows
from published_megatron import llama_sizes, traced
from published_nanotron import Scored

from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.remat.rules import candidates
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.planner.simulate.predict import predict
from meshwright.planner.software.memory import peak_bytes
from meshwright.planner.software.profile import Software, read_software
from meshwright.planner.software.step import step_us

ROWS = Path(__file__).parent / "data" / "published_torchtitan_rows.csv"
PROFILE, GIB = "torchtitan-2024", 2**30
MODELS = {
    "8B": ("llama-7b", ""),
    "70B": ("llama-70b", ""),
    "405B": ("llama-405b", ""),
    "13B": ("llama-7b", llama_sizes(40, 5120, 40, 13824, 32000)),
    "70B-2": ("llama-70b", "vocab = 32000\n"),
}
LAYERS = {"405B": 126}
# GiB of a card that its driver shows.
CARD_GIB = {"a100": 79.1, "h100-96": 95.0, "h200": 139.8, "mi300x": 192.0}
# What these H100s reach, as the people who ran them read it: 0.6 of the data sheet's rates in large
# matmuls, 0.92 of 2.4 TB/s (torchao, testing/float8/roofline_utils.py as it was in 2024 and 2025;
# later versions have 0.69 in bf16 and 0.78 in fp8).
MATMULS, HBM2E_BYTES_PER_S = 0.6, 0.92 * 2.4e12
# As published rows of PyTorch stacks told of A100s (published_fsdp.py).
A100_MATMULS = 0.92
# What the policy of selective checkpointing keeps of a block: the outputs of attention and of every
# other matmul, of which queries, values and gate are read in backward.
KEPT = ("q_linear", "v_linear", "attention_o", "attention_lse", "gate_linear")
# The profile counts those by itself, as often as it says.
LOGITS = "loss_logits"
# The model whose configuration of 2024-06 chose a kernel for norms (train_configs/llama2_13b.toml,
# norm_type = "fused_rmsnorm"); those of the others chose none (pull request 297, of May 2024).
NORM_KERNEL = "13B"
# Where the vocabulary is split, the loss makes each of its values by a kernel of its own
# (torch/distributed/tensor/parallel/loss.py): backward holds four of float32.
SPLIT_LOSS = {"loss_passes": (19, 19), "logits_held": 8.0}
# Since then (pull requests 755 and 1033) the loss is compiled with the model: logits are read, and
# their gradient is written, nothing wider than they are.
COMPILED_SINCE = "2025-04"
COMPILED_LOSS = {"loss_passes": (1, 2), "logits_held": 2.0}


def sizes_of(row: dict[str, str]) -> tuple[int, int, int, int]:
    """Return the sizes of dp, tp, cp and pp."""
    gpus, tp, cp, pp = (int(row[key]) for key in ("gpus", "tp", "cp", "pp"))
    return gpus // (tp * cp * pp), tp, cp, pp


def cluster_of(row: dict[str, str]) -> Cluster:
    """Return nodes of eight of a row's cards, with room for whatever ran."""
    gpus, name = int(row["gpus"]), row["gpu"].partition("-")[0]
    found = parse_cluster(f"{name}:{min(gpus, 8)}" + (f"x{gpus // 8}" if gpus > 8 else ""))
    device = replace(found.device, memory_bytes=10**13)
    if row["gpu"] == "h100-96":
        device = replace(device, efficiency=MATMULS, hbm_bytes_per_s=HBM2E_BYTES_PER_S)
    return replace(found, device=device)


def model_of(row: dict[str, str]) -> Traced:
    preset, changes = MODELS[row["model"]]
    long = f"max_seq = {row['seq']}\n" if int(row["seq"]) > 8192 else ""
    return traced(preset, changes + long)


def cuts_of(row: dict[str, str]) -> str | None:
    """Return the first piece of each stage but the first: all have as many layers, and of those
    left over the second to the last but one have one more."""
    stages = int(row["pp"]) * int(row["chunks"])
    if stages == 1:
        return None
    per, left = divmod(LAYERS[row["model"]], stages)
    starts = [per * n + min(n - 1, left) for n in range(1, stages)]
    return ",".join(str(1 + 2 * start) for start in starts)


def plan_of(row: dict[str, str], recompute: str) -> tuple[Plan, Cluster]:
    """Pin a row's layout."""
    dp, tp, cp, pp = sizes_of(row)
    rows, chunks = int(row["local_batch"]), int(row["chunks"])
    pins = Pins(
        pp=pp, dp=dp, tp=tp, cp=cp, micro_batch=rows // pp, zero=2 if pp > 1 else 3,
        precision="master", reduce_dtype="f32", recompute="all", cuts=cuts_of(row),
        schedule="interleaved" if chunks > 1 else "1f1b" if pp > 1 else None,
        chunks=chunks if chunks > 1 else None, shard_weights=int(tp > 1),
        shard_sequence=0 if tp > 1 else None, price=1e-6 if tp > 1 else None,
    )  # fmt: skip
    cluster, model = cluster_of(row), model_of(row)
    given = {"seq": int(row["seq"]), "global_batch": dp * rows}
    plan = make_plan(model, cluster, pins=pins, **given)
    names = LOGITS
    if recompute != "none":
        names += "," + again(plan, KEPT if recompute == "op" else ())
    plan = make_plan(model, cluster, pins=replace(pins, recompute=names), **given)
    return plan, cluster


def again(plan: Plan, kept: tuple[str, ...]) -> str:
    """Return the values of blocks that checkpointing computes again: all but those that end so."""
    blocks = (piece for piece in plan.pieces if piece.name in ("attention", "ffn"))
    names = (name for piece in blocks for name in candidates(piece.graph))
    return ",".join(name for name in names if not name.endswith(kept))


def software_of(row: dict[str, str]) -> Software:
    """Return the profile as a row ran it."""
    found = read_software(PROFILE)
    if row["compiled"] == "False":
        eager = read_software("pytorch-eager")
        found = replace(found, fused=False, kernel_us=eager.kernel_us, layer_us=eager.layer_us)
        if row["model"] == NORM_KERNEL:
            found = replace(found, library_kernels=("norm",))
    elif row["date"] >= COMPILED_SINCE:
        found = replace(found, **COMPILED_LOSS)
    elif row["tp"] != "1":
        found = replace(found, **SPLIT_LOSS)
    if row["gpu"] == "a100":
        found = replace(found, matmul_share=A100_MATMULS)
    if not row["gpu"].startswith("h"):  # these cards' rates are FlashAttention-2's own
        found = replace(found, attention_share=1.0)
    if row["tp"] != "1" and row["recompute"] == "op":  # sums over ranks are kept
        found = replace(found, keeps_layers=False)
    narrow, overlaps = row["matmuls"] != "bf16", row["async_tp"] == "True"
    return replace(found, float8=narrow, overlaps_tensor=overlaps)


def predicted(row: dict[str, str]) -> Scored:
    """Price a row's layout, as our program and as that stack runs it."""
    ways = ("none", "full") if row["recompute"] == "layer" else (row["recompute"],)
    found = [_priced(row | {"recompute": way}, *plan_of(row, way)) for way in ways]
    return replace(found[0], row=row, **{
        key: statistics.mean(getattr(r, key) for r in found)
        for key in ("pinned", "there", "gib", "flop_s")
    })  # fmt: skip


def _priced(row: dict[str, str], plan: Plan, cluster: Cluster) -> Scored:
    dp, *_ = sizes_of(row)
    tokens = int(row["seq"]) * int(row["local_batch"]) * dp / int(row["gpus"])
    software, own = software_of(row), predict(plan, cluster)
    flop_s = float(dict(plan.costs)["predicted_matmul_rate_share"]) * own.step_us / 1e6
    if software.float8:
        flop_s *= cluster.device.matmul_rate("bf16") / cluster.device.matmul_rate("fp8")
    return Scored(
        row,
        tokens / float(row["tokens_per_gpu_s"]),
        own.step_us / 1e6,
        step_us(plan, cluster, software) / 1e6,
        peak_bytes(plan, cluster, _holding(row, software)) / GIB,
        flop_s,
    )


def _holding(row: dict[str, str], software: Software) -> Software:
    """Return the profile of a row's memory. Without a compiler selective checkpointing keeps the
    output of a block's last matmul, which nothing reads and which is as wide as what enters its
    second half."""
    eager = row["compiled"] == "False" and row["recompute"] == "op"
    return replace(software, keeps_layers=False) if eager else software


def _memory_off(r: Scored) -> float:
    """Return the share by which memory is off."""
    return r.gib / float(r.row["memory_gib"]) - 1


def priced(rows: list[dict[str, str]]) -> Iterator[Scored]:
    for row in rows:
        r = predicted(row)
        print(*row.values(), f"{r.seconds:.3f} {r.pinned:.3f} {r.there:.3f} "
              f"{r.there / r.seconds - 1:+.1%} {r.gib:.1f}",
              f"{_memory_off(r):+.1%}" if row["memory_gib"] else "", flush=True)  # fmt: skip
        yield r


KINDS: dict[str, Callable[[dict[str, str]], bool]] = {
    "all": lambda row: True,
    "bf16": lambda row: row["matmuls"] == "bf16",
    "Float8": lambda row: row["matmuls"] != "bf16",
    "Float8, a scale a row": lambda row: row["matmuls"] == "fp8-rows",
    "all but those": lambda row: row["matmuls"] != "fp8-rows",
    "FSDP alone": lambda row: row["tp"] == row["cp"] == row["pp"] == "1",
    "TP or PP, no CP": lambda row: row["cp"] == "1" != row["tp"],
    "CP": lambda row: row["cp"] != "1",
}


def show(name: str, found: list[Scored], constant: float) -> None:
    """Print the errors of some rows, of each way to predict them."""
    ways: dict[str, Callable[[Scored], float]] = {
        "pinned plan": lambda r: r.pinned,
        PROFILE: lambda r: r.there,
        "constant": lambda r: r.flop_s / constant,
    }
    for way, of in ways.items():
        print(summary(f"{name}: {way}", [of(r) / r.seconds - 1 for r in found]))
    told = [r for r in found if r.row["memory_gib"]]
    print(summary(f"{name}: memory", [_memory_off(r) for r in told]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, default=ROWS)
    found = list(priced(read_rows(parser.parse_args().rows)))
    constant = statistics.median(r.flop_s / r.seconds for r in found)
    print(f"\nconstant, their own median: {constant:.1%}")
    print("| rows | rows | median error | mean | worst | signed median |\n|" + "---|" * 6)
    for kind, has in KINDS.items():
        if some := [r for r in found if has(r.row)]:
            show(kind, some, constant)
    reached = [r.flop_s / r.seconds for r in found]
    for name, way in {"pinned plan": lambda r: r.pinned, PROFILE: lambda r: r.there}.items():
        share = spearman(reached, [r.flop_s / way(r) for r in found])
        print(f"Spearman of the share reached, {name}: {share:.3f}")
    unfit = sum(r.gib > CARD_GIB[r.row["gpu"]] for r in found)
    print(f"ran, called infeasible: {unfit} of {len(found)}")


if __name__ == "__main__":
    main()
