"""Tensors between pp ranks: activations one way, their gradients the other.

Note. Transfers match in order alone, so everything that moves from one rank to another of one kind
(F or B) goes through one communicator in one direction; the plan proved that both ends list them in
the same order. A communicator for both directions of a pair would make a send wait for a receive
that stands behind it.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from . import collectives, mesh

# Sends of one kind to one rank that may be under way; their tensors are held. The plan was proven
# to run to its end with this number.
SENDS_IN_FLIGHT = 4


class Transfers:
    """The communicators of a pipeline, and the sends of this rank that are under way."""

    def __init__(self, stage_ranks: tuple[int, ...]) -> None:
        pairs = list(zip(stage_ranks, stage_ranks[1:], strict=False))
        moves = [("F", a, b) for a, b in pairs] + [("B", b, a) for a, b in pairs]
        ways = sorted(
            {(kind, source < target) for kind, source, target in moves if source != target}
        )
        # Every rank makes every group, in the same order.
        self.groups = {way: mesh.axis_group_again("pp") for way in ways}
        self.sends: dict[tuple[str, int], list[tuple[dist.Work | None, Tensor]]] = {}

    def send(self, kind: str, x: Tensor, target: int) -> None:
        """Start sending to a pp rank; waits for the oldest where SENDS_IN_FLIGHT are under way."""
        under_way = self.sends.setdefault((kind, target), [])
        if len(under_way) == SENDS_IN_FLIGHT:
            _wait(under_way.pop(0))
        x = x.contiguous()
        group = self.groups[kind, mesh.coordinate("pp") < target]
        under_way.append((collectives.send(x, _device(target), group), x))

    def receive(self, kind: str, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> Tensor:
        group = self.groups[kind, source < mesh.coordinate("pp")]
        return collectives.receive(shape, dtype, mesh.device(), _device(source), group)

    def finish(self) -> None:
        """Wait for all sends."""
        for under_way in self.sends.values():
            while under_way:
                _wait(under_way.pop(0))


def _wait(send: tuple[dist.Work | None, Tensor]) -> None:
    if send[0] is not None:
        send[0].wait()


def _device(pp: int) -> int:
    """The global rank of this rank's counterpart on a pp rank."""
    here = {axis: mesh.coordinate(axis) for axis in mesh.axes()}
    return mesh.rank_of({**here, "pp": pp})
