"""What ops ask of a device, whatever its rates: counted once, priced on many devices."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from meshwright.ir.graph import Graph, Op
from meshwright.ir.placement import Placement

from ..hardware.cluster import READ_DEPTH, Device
from .attention_blocks import Kernels


class Attention(NamedTuple):
    """What the rate of a fused attention follows from: head size, positions that cost alike, the
    backend ("": the vendor's own), its direction, the share that a soft-cap leaves, how much longer
    it takes with few blocks, on devices where that backend was read, and what our kernels take."""

    head_dim: int
    alike: float
    backend: str
    backward: bool
    capped: float
    idle: float = 1.0
    ours: Kernels | None = None


class Rate(NamedTuple):
    """The rate of the matrix unit in a dtype, and the share of it that is reached; of a fused
    attention its own rate, where the device has one. contracted: the contracted dimension of a
    matmul."""

    dtype: str
    share: float = 1.0
    attention: Attention | None = None
    contracted: float = READ_DEPTH

    def on(self, device: Device) -> float:
        """Return flops per second."""
        asked = self.attention
        if asked is not None:
            rates = device.attention_rate(asked.head_dim, asked.alike, asked.backend)
            if rates is not None:
                read = any(r.backend == asked.backend for r in device.attention_readings)
                share = self.share / (asked.idle if read else 1.0)
                rate = rates[asked.backward]
                if asked.ours is not None and read:
                    rate = self._with_blocks(device, asked, rate)
                return rate * asked.capped * share
        rate = device.matmul_rate(self.dtype) * self.share * device.clock
        return rate * device.depth_share(self.contracted)

    @staticmethod
    def _with_blocks(device: Device, asked: Attention, full: float) -> float:
        """Return the rate of our kernels where the longest block of each may set its time.

        full: the rate with many blocks.
        """
        assert asked.ours is not None
        rates = device.attention_rate(asked.head_dim, math.inf, asked.backend)
        assert rates is not None
        return 1.0 / sum(kernel.over(full, rates[asked.backward]) for kernel in asked.ours.each)


class Load(NamedTuple):
    """What an op asks of one rank: flops at a rate, beside them bytes read and written, after them
    bytes of further passes, whether a kernel is launched for it, and us that it takes whatever its
    size."""

    flops: float
    rate: Rate
    moved_bytes: float
    passed_bytes: float
    launched: bool
    fixed_us: float = 0.0


class Held(NamedTuple):
    """Bytes of a piece's functions, which no rate changes: alive at once in forward and backward,
    kept between them, coming in and going out, and of gradients that the matmuls which make them
    add; of a split backward those alive in I and in W, and handed from one to the other.

    sums: bytes of the gradients that matmuls add on a GPU, and these over the rows that each sums.
    """

    forward_peak: float
    backward_peak: float
    kept: float
    entry: float
    exit: float
    added: float
    sums: tuple[float, float]
    first_peak: float = 0.0
    second_peak: float = 0.0
    handed: float = 0.0


@dataclass
class RankGraph:
    """What no rate changes of a joint graph on a rank, each part made once.

    bytes: of its values. loads: of its ops, by output and what is fused away. phases: by the id of
    a function, itself, its collectives and the loads of its other ops. held: bytes of its functions
    by what is saved, whether backward is split, and whether gradients are added apart.
    """

    graph: Graph
    placements: dict[str, Placement]
    bytes: dict[str, float] = field(default_factory=dict)
    loads: dict[tuple, tuple[Op, Load | None]] = field(default_factory=dict)
    phases: dict[int, tuple[object, list[Op], list[tuple[str, Load]]]] = field(default_factory=dict)
    held: dict[tuple, Held] = field(default_factory=dict)
