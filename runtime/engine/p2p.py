"""Tensors between pp ranks: activations one way, their gradients the other.

Note. Transfers of one communicator match in order alone, and NCCL runs all that a rank issues to
one communicator one after the other: a send that waits for its receiver blocks every later
receive. So a *channel* of a rank, one kind (F or B) from one neighbour or to one, has a
communicator to itself: neighbours are coloured so that no rank has two pairs of one colour, and
each (kind, colour, direction) is a communicator along pp. The plan proved that both ends of a
channel list it in the same order, and that no rank is stuck with SENDS_IN_FLIGHT in each.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from . import collectives, mesh

# Sends of one kind to one rank that may be under way; their tensors are held. The plan was proven
# to run to its end with this number.
SENDS_IN_FLIGHT = 4

Sending = tuple[dist.Work | None, Tensor]


class Transfers:
    """The communicators of a pipeline, and the sends of this rank that are under way."""

    def __init__(self, stage_ranks: tuple[int, ...]) -> None:
        pairs = list(zip(stage_ranks, stage_ranks[1:], strict=False))
        moves = [("F", a, b) for a, b in pairs] + [("B", b, a) for a, b in pairs]
        ways = sorted({_way(*move) for move in moves if move[1] != move[2]})
        # Every rank makes every group, in the same order.
        self.groups = {way: mesh.another_group(*mesh.PIPELINE) for way in ways}
        self.sends: dict[tuple[str, int], list[list[Sending]]] = {}
        self._moves = [move for move in moves if move[1] != move[2]]

    def open(self) -> None:
        """One element through every channel, all ranks in the same order: its two ends meet at
        the first transfer, which in the schedule might find one of them waiting elsewhere."""
        here = mesh.index(*mesh.PIPELINE)
        for kind, source, target in dict.fromkeys(self._moves):
            if here == source:
                self.send(kind, (torch.zeros(1, device=mesh.device()),), target)
            elif here == target:
                self.receive(kind, source, (1,), torch.float32)
        self.finish()

    def send(self, kind: str, values: tuple[Tensor, ...], target: int) -> None:
        """Start sending what crosses a boundary to a pp rank."""
        self.make_way(kind, target)
        under_way = self.sends[kind, target]
        group, device = self.groups[_way(kind, mesh.index(*mesh.PIPELINE), target)], _device(target)
        values = tuple(x.contiguous() for x in values)
        under_way.append([(collectives.send(x, device, group), x) for x in values])

    def make_way(self, kind: str, target: int) -> None:
        """Wait for the oldest send to a pp rank where SENDS_IN_FLIGHT are under way."""
        under_way = self.sends.setdefault((kind, target), [])
        if len(under_way) == SENDS_IN_FLIGHT:
            _wait(under_way.pop(0))

    def receive(self, kind: str, source: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next value that a pp rank sends, of this shape."""
        group = self.groups[_way(kind, source, mesh.index(*mesh.PIPELINE))]
        return collectives.receive(shape, dtype, mesh.device(), _device(source), group)

    def fill(self, kind: str, source: int, values: tuple[Tensor, ...]) -> None:
        """Receive what crosses a boundary into tensors that are there."""
        group = self.groups[_way(kind, source, mesh.index(*mesh.PIPELINE))]
        for x in values:
            collectives.receive_into(x, _device(source), group)

    def finish(self) -> None:
        """Wait for all sends."""
        for under_way in self.sends.values():
            while under_way:
                _wait(under_way.pop(0))


def _way(kind: str, source: int, target: int) -> tuple[str, int, bool]:
    """(kind, colour of the pair, direction). Neighbours on the axis take turns in two colours; the
    pair that closes a ring has a third, as a ring of odd length needs it."""
    low, high = sorted((source, target))
    colour = low % 2 if high - low == 1 else 2
    return kind, colour, source < target


def _wait(sends: list[Sending]) -> None:
    for work, _ in sends:
        if work is not None:
            work.wait()


def _device(pp: int) -> int:
    """The global rank of this rank's counterpart on a pp rank."""
    here = {axis: mesh.coordinate(axis) for axis in mesh.axes()}
    (pipeline,) = mesh.names(*mesh.PIPELINE)
    return mesh.rank_of({**here, pipeline: pp})
