"""One training step: the emitted program against plain PyTorch, in one run on the same cards.

    torchrun --nproc-per-node N benchmarks/train_step.py PROGRAM [PROGRAM ...] --plain MODEL

Each program and the plain model train on one fixed random batch; reported are the median step
after warm-up, tokens/s over all cards, peak memory of the fullest rank and the losses. Plain is the
same model under autograd with per-block torch.compile, cuDNN attention, cross-entropy in chunks of
2048 tokens, fused AdamW and clip 1.0; over several cards it is wrapped in FSDP2 (fully_shard per
block).
"""

import argparse
import gc
import json
import os
import re
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from meshwright.runtime.launch.device_settings import set_for

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", help="emitted folders for this number of ranks")
    parser.add_argument("--plain", default="", help="model spec of the plain run")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--reference", action="store_true", help="time matmuls and links first")
    parser.add_argument("--out", default="", help="append one JSON row a measurement to this file")
    parser.add_argument("--kernels", action="store_true", help="print a kernel table of each")
    arguments = parser.parse_args()
    device = _start(arguments.programs)
    if arguments.reference:
        _report(_reference(device), arguments)
    order = [*arguments.programs, *([arguments.plain] if arguments.plain else [])]
    for name in order:
        measure = _plain if name == arguments.plain else _program
        row = measure(name, arguments, device)
        _report(row, arguments)
        gc.collect()
        torch.cuda.empty_cache()
    if dist.is_initialized():
        dist.barrier()
    os._exit(0)


def _start(programs: list[str]) -> torch.device:
    """Set the device up as the programs' own entry does."""
    for folder in programs or [""]:
        set_for(Path(folder))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, device_id=device if device.type == "cuda" else None)
    return device


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _report(row: dict, arguments: argparse.Namespace) -> None:
    if dist.is_initialized() and dist.get_rank() != 0:
        return
    print(json.dumps(row), flush=True)
    if arguments.out:
        with open(arguments.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _time(step, arguments: argparse.Namespace, device: torch.device, tokens: int) -> dict:  # type: ignore[no-untyped-def]
    """Run warm-up and timed steps; `step()` returns (loss, grad norm)."""
    losses, norms, times = [], [], []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for index in range(arguments.warmup + arguments.steps):
        _synchronize(device)
        started = time.perf_counter()
        loss, norm = step()
        _synchronize(device)
        times.append(time.perf_counter() - started)
        losses.append(round(loss, 4))
        norms.append(norm)
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"  step {index} loss {loss:.4f} norm {norm:.3f} {times[-1]:.3f} s", flush=True)
    if arguments.kernels and device.type == "cuda":
        _print_kernels(step)
    median = statistics.median(times[arguments.warmup :])
    peak = _largest(torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0, device)
    return {
        "step_s": round(median, 4),
        "spread_s": round(max(times[arguments.warmup :]) - min(times[arguments.warmup :]), 4),
        "tokens_per_s": round(tokens / median),
        "peak_GiB": round(peak / 2**30, 2),
        "beside_GiB": round(_beside(device) / 2**30, 2),
        "first_step_s": round(times[0], 1),
        "losses": losses,
        "finite": all(n == n and n != float("inf") for n in norms),
        "cards": _world(),
        "card": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def _beside(device: torch.device) -> int:
    """Return the bytes in use on a card that the allocator does not hold: context, communicators,
    kernels, CUDA graphs."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def _print_kernels(step) -> None:  # type: ignore[no-untyped-def]
    """Print the table of one more step; over several cards that of rank 0, and each one's kinds."""
    from kernel_table import by_kind, kernels_of, spans_of

    spans = spans_of(step)
    kinds = [by_kind(spans)] * _world()
    if dist.is_initialized():
        dist.all_gather_object(kinds, kinds[0])
    if not dist.is_initialized() or dist.get_rank() == 0:
        ranks = [f"rank {rank}: {line}" for rank, line in enumerate(kinds)]
        print("\n".join([*kernels_of(spans), *ranks]), flush=True)


def _largest(number: int, device: torch.device) -> int:
    """Of all ranks."""
    if not dist.is_initialized():
        return number
    found = torch.tensor([number], device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return int(found)


def _by_rank(number: float, device: torch.device) -> list[float]:
    """Return the numbers of all ranks in order, to three digits."""
    mine = torch.tensor([number], device=device)
    found = [mine.clone() for _ in range(_world())]
    if dist.is_initialized():
        dist.all_gather(found, mine)
    return [round(float(part), 3) for part in found]


def _batch(
    vocab: int, rows: int, seq: int, device: torch.device, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(0, vocab, (rows, seq + 1), generator=generator).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _given(layout: Any, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
    """What a micro-batch gives to a program; programs of older versions take a pair."""
    if not hasattr(layout, "inputs"):
        return tokens, labels
    roles = ("source", "images", "places")
    others = {x.role: _other(x, tokens) for x in layout.inputs if x.role in roles}
    return import_module("runtime.engine.inputs").batch_of(layout.inputs, tokens, labels, **others)


def _other(asked: Any, tokens: torch.Tensor) -> torch.Tensor:
    """What a program reads beside tokens: the same as a source, pixels, the first places."""
    if asked.role == "source":
        return tokens
    rows, (_, *sizes) = len(tokens), map(str, asked.shape)
    shape = (rows, *map(int, sizes))
    if asked.role == "images":
        return torch.randn(shape, device=tokens.device)
    return torch.arange(shape[1], device=tokens.device).expand(shape)


def _program(folder: str, arguments: argparse.Namespace, device: torch.device) -> dict:
    for name in [n for n in sys.modules if n.split(".")[0] == "runtime"]:
        del sys.modules[name]
    sys.path.insert(0, str(Path(folder).resolve()))
    # The program's own copy of the runtime.
    names = ("engine.mesh", "engine.compiling", "optimizers.options", "training.program")
    mesh, compiling, optimizers, program = (import_module(f"runtime.{name}") for name in names)

    torch._dynamo.reset()
    layout = program.load_layout(Path(folder))
    mesh.start(layout.mesh, device)
    executor = program.build_executor(
        Path(folder),
        layout,
        optimizers.OptimizerOptions(name=layout.optimizer, rounding=_rounding(Path(folder))),
        seed=0,
        compiler=compiling.Compiler(),
    )
    rows = layout.micro_batch * layout.num_microbatches
    tokens, labels = _batch(layout.vocab_size, rows, layout.seq, device, mesh.index(*mesh.BATCH))
    size = layout.micro_batch
    pairs = zip(tokens.split(size), labels.split(size), strict=True)
    batches = [_given(layout, *pair) for pair in pairs]
    count = rows * mesh.count(*mesh.BATCH) * layout.seq
    row = _time(lambda: executor.train_step(batches, count, arguments.lr), arguments, device, count)
    sys.path.pop(0)
    axes = " ".join(f"{k}={v}" for k, v in layout.mesh.items())
    head = {"what": "emitted", "program": Path(folder).name, "mesh": axes, "zero": layout.zero}
    return head | row | _predicted(Path(folder) / "plan.txt", row)


def _rounding(folder: Path) -> str:
    """Return how the program's plan rounds updates."""
    found = re.search(r"^rounding: (\S+)$", (folder / "plan.txt").read_text(), re.MULTILINE)
    return found[1] if found else "nearest"


def _predicted(plan: Path, row: dict) -> dict:
    """Predicted step and peak of the plan, and by how much they miss what was measured."""
    found = dict(re.findall(r"^(predicted_\w+) (\S+)$", plan.read_text(), re.MULTILINE))
    if "predicted_step_us" not in found:
        return {}
    step_s = float(found["predicted_step_us"]) / 1e6
    peak = float(found["predicted_peak_bytes"]) / 2**30
    return {
        "predicted_step_s": round(step_s, 4),
        "step_error": round(step_s / row["step_s"] - 1, 4),
        "predicted_peak_GiB": round(peak, 2),
        "peak_error": round(peak / row["peak_GiB"] - 1, 4) if row["peak_GiB"] else None,
    }


# M = 16384 rows, then (K, N), with the h200 catalogue's reading in Tflop/s (2026-11-20).
_SHAPES = {(4096, 12288): 777, (4096, 4096): 664, (4096, 22016): 691, (11008, 4096): 642}
_COPY_GB_S = 4244
_WARM_S, _READ_S = 2.0, 0.8
# Of the time between matmuls, what kernels take that wait for memory: a quarter of a step of a 7B.
_BETWEEN = 0.25


def _reference(device: torch.device) -> dict:
    """Return the rates of matmuls and copies over the catalogue's, of the slowest card; of several
    cards also the matmuls of each, and the us of an all-gather.

    Read after _WARM_S of matmuls: a cool card runs up to 8% faster than in a step. Matmuls are read
    between copies, as a step has them: without these its power limits the card, which then runs 4
    to 7% slower than in a step (H200).
    """
    x = torch.randn(2**30, device=device)
    y = torch.empty_like(x)
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    _stream(a, a, lambda: None, _WARM_S)
    shares = []
    for (k, n), tflops in _SHAPES.items():
        a = torch.randn(16384, k, device=device, dtype=torch.bfloat16)
        b = torch.randn(k, n, device=device, dtype=torch.bfloat16)
        flops = 2 * 16384 * k * n
        between_s = flops / tflops / 1e12 * _BETWEEN / (1 - _BETWEEN)
        part = min(x.numel(), int(between_s * _COPY_GB_S * 1e9 / 8))
        took = _stream(a, b, lambda n=part: y[:n].copy_(x[:n]), _READ_S)  # type: ignore[misc]
        shares.append(flops / took / 1e12 / tflops)
    copy = 2 * x.numel() * 4 / _median_s(lambda: y.copy_(x)) / 1e9 / _COPY_GB_S
    matmuls, copies = _by_rank(statistics.mean(shares), device), _by_rank(copy, device)
    row: dict[str, Any] = {
        "what": "reference",
        "matmul_over_catalogue": min(matmuls),
        "copy_over_catalogue": min(copies),
    }
    if _world() > 1:
        row["matmul_by_rank"] = matmuls
        part = torch.empty(2**28 // _world(), device=device, dtype=torch.bfloat16)
        whole = torch.empty(2**28, device=device, dtype=torch.bfloat16)
        gather = _median_s(lambda: dist.all_gather_into_tensor(whole, part))
        row["all_gather_512MB_us"] = round(1e6 * gather)
    return row


def _stream(a: torch.Tensor, b: torch.Tensor, between, seconds: float) -> float:  # type: ignore[no-untyped-def]
    """Median seconds of a matmul, in the second half of a stream of them that lasts `seconds`."""
    times = []
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        for _ in range(16):  # the host waits once for 16, so that the card is rarely idle
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            a @ b
            stop.record()
            between()
            times.append((start, stop))
        torch.cuda.synchronize()
    read = [start.elapsed_time(stop) / 1e3 for start, stop in times[len(times) // 2 :]]
    return statistics.median(read)


def _median_s(run) -> float:  # type: ignore[no-untyped-def]
    """Median of 20 timed calls after 5, in seconds."""
    times = []
    for _ in range(25):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(times[5:])


class _PlainLoss(nn.Module):
    """The model up to its head, and the loss in chunks of tokens, never all logits at once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.head = model.lm_head
        model.lm_head = nn.Identity()

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
        hidden = self.model(tokens).flatten(0, 1)
        total = hidden.new_zeros((), dtype=torch.float32)
        for h, y in zip(hidden.split(2048), labels.flatten().split(2048), strict=True):
            total = total + self.chunk(h, y)
        return total / count

    def chunk(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self.head(h).float()
        return nn.functional.cross_entropy(logits, y, reduction="sum")


def _plain(spec: str, arguments: argparse.Namespace, device: torch.device) -> dict:
    from meshwright.models import load_model

    source = load_model(spec)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = source.build()
    torch.set_default_dtype(torch.float32)
    for part in model.modules():
        if getattr(part, "semantic_op", "") == "attention":
            part.forward = _sdpa(part.scale)  # type: ignore[method-assign]
    model = _PlainLoss(model)
    for block in model.model.layers:
        block.compile(dynamic=False)
    model.chunk = torch.compile(model.chunk, dynamic=False)  # type: ignore[method-assign]
    if _world() > 1:
        from torch.distributed.fsdp import fully_shard

        for block in model.model.layers:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=arguments.lr, betas=(0.9, 0.95), fused=True
    )
    rows = arguments.micro_batch * arguments.accumulate
    rank = dist.get_rank() if dist.is_initialized() else 0
    tokens, labels = _batch(source.vocab_size, rows, arguments.seq, device, rank)
    count = rows * arguments.seq * _world()
    size = arguments.micro_batch

    def step() -> tuple[float, float]:
        total = torch.zeros((), device=device)
        for t, y in zip(tokens.split(size), labels.split(size), strict=True):
            loss = model(t, y, count)
            # FSDP averages gradients over ranks; the loss is already divided by the global count.
            (loss * _world()).backward()
            total += loss.detach()
        if _world() > 1:
            dist.all_reduce(total)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return float(total), float(norm)

    row = _time(step, arguments, device, count)
    what = "plain FSDP2" if _world() > 1 else "plain PyTorch"
    return {"what": what, "model": spec, "micro_batch": f"{size}x{arguments.accumulate}"} | row


def _sdpa(scale: float):  # type: ignore[no-untyped-def]
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, enable_gqa=True
            )

    return forward


if __name__ == "__main__":
    main()
