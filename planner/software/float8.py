"""Matmuls in fp8: what they take, and what casting their operands does.

Each operand has one scale: it is read for its largest value, and read again to be cast. What is an
operand in two layouts, as a gradient is for that of the input and that of the weight, is written
in both, as the tensor cores of fp8 take one layout alone.
"""

from dataclasses import replace

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.ops.registry import definition
from meshwright.ir.plan import Piece

from ..cost.op_cost import Costs
from ..cost.phase_work import PhaseWork
from ..cost.piece_cost import Phase
from ..hardware.cluster import Device

FP8_BYTES, READS = 1, 2


def cast_us(work: PhaseWork, piece: Piece, costs: Costs) -> float:
    """Return the time of casting the operands of a function's matmuls."""
    layouts: dict[str, set[int]] = {}
    for op in work.graph.ops:
        if definition(op).kind == "matmul":
            for name in filter(None, op.inputs):
                layouts.setdefault(work.storage(name), set()).add(len(op.output.shape))
    moved = 0.0
    for name, asked in layouts.items():
        value, placement = piece.graph.values[name], piece.placements[name]
        item = ITEM_BYTES[value.dtype]
        moved += costs.local_bytes(value, placement) * (READS + FP8_BYTES / item * len(asked))
    return moved / costs.cluster.device.hbm_bytes_per_s * 1e6


def with_float8(phase: Phase, casts_us: float, device: Device) -> Phase:
    """Return a function whose matmuls are in fp8; as it is on a card without a rate of it."""
    if "fp8" not in dict(device.matmul_flops_per_s):
        return phase
    faster = device.matmul_rate("fp8") / device.matmul_rate("bf16")
    return replace(
        phase,
        matmul_us=phase.matmul_us / faster,
        pointwise_us=phase.pointwise_us + casts_us,
    )
