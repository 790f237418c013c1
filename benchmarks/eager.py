"""What software profiles assume of eager PyTorch, measured on one GPU.

    python benchmarks/eager.py

The host's time of a layer of a Llama in plain PyTorch, forward and backward, where the device
waits: by modules and autograd alone, and under DistributedDataParallel's hooks of one process. How
many kernels that is. And attention of FlashAttention-2, which torch has, beside cuDNN's, by the
size of a head.
"""

import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

LAYERS, DIM, HEADS, FFN, TOKENS = 8, 256, 4, 704, 128
REPEATS = 9


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (wide * scale).to(x.dtype) * self.weight


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Layer(nn.Module):
    """A layer as model code has it: two norms, attention, a gated network."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = Norm(), Norm()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(DIM, FFN, bias=False) for _ in range(2))
        self.down = nn.Linear(FFN, DIM, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (
            one(y).view(1, TOKENS, HEADS, -1).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(o.transpose(1, 2).flatten(2))
        y = self.behind(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x.float().mean()


def host_ms(run: Callable[[], object]) -> float:
    """Return the median time of a run to its end, in ms. The device is faster than the host."""
    for _ in range(5):
        run()
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(10):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / 10 * 1e3)
    return statistics.median(times)


def show_host() -> None:
    model = Model().to("cuda", torch.bfloat16)
    x = torch.randn(1, TOKENS, DIM, device="cuda", dtype=torch.bfloat16)
    cos, sin = (torch.randn(TOKENS, DIM // HEADS, device="cuda", dtype=x.dtype) for _ in range(2))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    wrapped = nn.parallel.DistributedDataParallel(model)

    def steps(module: nn.Module) -> Callable[[], object]:
        return lambda: module(x, cos, sin).backward()

    def forward() -> None:
        with torch.no_grad():
            model(x, cos, sin)

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        steps(model)()
        torch.cuda.synchronize()
    kernels = sum(1 for event in seen.events() if event.device_type.name == "CUDA")
    ways = {"forward without autograd": forward, "forward and backward": steps(model),
            "the same under DistributedDataParallel": steps(wrapped)}  # fmt: skip
    for name, run in ways.items():
        ms = host_ms(run)
        print(f"host, {name}: {ms / LAYERS:.3f} ms a layer", flush=True)
    print(f"kernels of a layer, forward and backward: {kernels / LAYERS:.1f}", flush=True)
    torch.distributed.destroy_process_group()


def device_ms(run: Callable[[], object]) -> float:
    """Return the median time of a run on the device, in ms."""
    for _ in range(3):
        run()
    times = []
    for _ in range(REPEATS):
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        ends[0].record()
        for _ in range(5):
            run()
        ends[1].record()
        torch.cuda.synchronize()
        times.append(ends[0].elapsed_time(ends[1]) / 5)
    return statistics.median(times)


SHAPES = ((64, 2048), (64, 4096), (96, 4096), (128, 2048), (128, 4096), (128, 8192))
BACKENDS = {
    "FlashAttention-2": [SDPBackend.FLASH_ATTENTION],
    "cuDNN": [SDPBackend.CUDNN_ATTENTION],
    "as torch chooses": [],
}


def attention_rates(head: int, positions: int) -> tuple[float, float]:
    """Return Tflop/s of causal attention of 16,384 tokens of 2,048 features, by direction."""
    shape = 16384 // positions, 2048 // head, positions, head
    q, k, v = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    flops = 2 * shape[0] * shape[1] * positions**2 * head
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    grad = torch.randn_like(o)

    def ahead() -> None:
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def back() -> None:
        torch.autograd.grad(o, (q, k, v), grad, retain_graph=True)

    return flops / device_ms(ahead) / 1e9, 2.5 * flops / device_ms(back) / 1e9


def show_attention() -> None:
    print("| head | positions | backend | forward, Tflop/s | backward |\n|---|---|---|---|---|")
    for head, positions in SHAPES:
        for name, backends in BACKENDS.items():
            with sdpa_kernel(backends) if backends else nullcontext():
                ahead, back = attention_rates(head, positions)
            print(f"| {head} | {positions} | {name} | {ahead:.0f} | {back:.0f} |", flush=True)


def main() -> None:
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    show_attention()
    show_host()


if __name__ == "__main__":
    main()
