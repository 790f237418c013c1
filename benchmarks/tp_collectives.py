"""How many collectives a block under DTensor tensor parallelism is compiled to; no GPU needed.

    python benchmarks/tp_collectives.py

A Llama block wrapped as KempnerForge's distributed/tensor_parallel.py describes (sequence shards
between blocks, each projection takes them by itself), recomputed whole, under FSDP2: the
collectives over tp in the graphs of torch.compile, by which kempnerforge.py prices that framework.
"""

from collections import Counter

import torch
import torch.distributed as dist
import torch.nn.functional as F
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

DIM, HEADS, FFN, ROWS, SEQ = 64, 8, 128, 2, 16


def linear(features: int, out: int) -> nn.Linear:
    return nn.Linear(features, out, bias=False, dtype=torch.bfloat16)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        rows, seq, _ = x.shape
        heads = (p(x).view(rows, seq, -1, DIM // HEADS) for p in (self.q, self.k, self.v))
        q, k, v = (h.transpose(1, 2) for h in heads)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).contiguous().view(rows, seq, -1))


class Ffn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = linear(DIM, FFN), linear(DIM, FFN), linear(FFN, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.ffn_norm = (nn.RMSNorm(DIM, dtype=torch.bfloat16) for _ in range(2))
        self.attention, self.ffn = Attention(), Ffn()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.ffn(self.ffn_norm(x))


def wrapped(mesh: DeviceMesh) -> nn.Module:
    block, tp = Block(), mesh["tp"]
    columns = ColwiseParallel(input_layouts=Shard(1))
    rows = RowwiseParallel(output_layouts=Shard(1))
    names = {"attention.q": columns, "attention.k": columns, "attention.v": columns,
             "attention.o": rows, "ffn.gate": columns, "ffn.up": columns, "ffn.down": rows,
             "norm": SequenceParallel(), "ffn_norm": SequenceParallel()}  # fmt: skip
    parallelize_module(block, tp, names)
    for part in (block.attention, block.ffn):
        part.register_forward_hook(
            lambda _, ins, out: out if isinstance(out, DTensor) else _sharded(out, tp)
        )
    whole = checkpoint_wrapper(block)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fully_shard(whole, mesh=mesh["dp"], mp_policy=policy)


def _sharded(x: Tensor, tp: DeviceMesh) -> DTensor:
    return DTensor.from_local(x, tp, [Shard(1)])


class Counted(Exception):
    """Ends a compilation once its graphs are counted."""


def counting(joint: torch.fx.GraphModule, inputs: object, **options: object) -> None:
    graphs = min_cut_rematerialization_partition(joint, inputs, **options)
    for name, module in zip(("forward", "backward"), graphs, strict=True):
        targets = (str(n.target) for n in module.graph.nodes if n.op == "call_function")
        found = Counter(t.split(".")[1] for t in targets if t.startswith("_c10d_functional."))
        found.pop("wait_tensor", None)
        print(name, dict(sorted(found.items())))
    raise Counted


def main() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    x = torch.randn(ROWS, SEQ // 2, DIM, dtype=torch.bfloat16, requires_grad=True)
    backend = aot_autograd(fw_compiler=lambda graph, _: graph, partition_fn=counting)
    try:
        torch.compile(wrapped(mesh), backend=backend)(_sharded(x, mesh["tp"]))
    except BackendCompilerFailed as end:
        if not isinstance(end.inner_exception, Counted):
            raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
