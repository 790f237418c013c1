"""A stand-in for torch.distributed in which one rank runs alone, and writes down what it sends.

The runtime calls torch.distributed by its module's functions; `alone` replaces those for a while.
Tensors are on torch's meta device: they have shapes and no values.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .held import Held


class DryRunError(ValueError):
    """A program that cannot run to the end of a step."""


@dataclass(frozen=True)
class Group:
    """A communicator. ranks: its members. place: its own among the groups of this rank."""

    ranks: tuple[int, ...]
    place: int

    def size(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True)
class Message:
    """Message of a rank to a communicator.

    place: of the communicator among those of the rank. kind: the collective's name, or send or
    recv. said: what its members must agree on. peer: a send's or receive's other end. parts:
    elements from and to each member, where they differ. size_bytes: of what this rank hands over.
    """

    place: int
    kind: str
    said: str
    peer: int = -1
    parts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    size_bytes: int = 0


@dataclass
class Trace:
    """Actions of a rank in the order in which it takes them.

    events: a message begins, or the rank waits for that of an index among the messages. actions: of
    the schedule, and the index of the first event of each.
    """

    groups: list[Group] = field(default_factory=list)
    events: list[Message | int] = field(default_factory=list)
    num_messages: int = 0
    actions: list[tuple[int, str]] = field(default_factory=list)

    def begin(self, message: Message) -> int:
        self.events.append(message)
        self.num_messages += 1
        return self.num_messages - 1

    def action_at(self, event: int) -> str:
        """Return the action of an event."""
        found = ""
        for first, action in self.actions:
            if first > event:
                break
            found = action
        return found


class Work:
    """A message under way."""

    def __init__(self, trace: Trace, message: int) -> None:
        self.trace, self.message = trace, message

    def wait(self) -> bool:
        self.trace.events.append(self.message)
        return True


class World:
    """The functions of torch.distributed, on one rank of `size`."""

    def __init__(self, rank: int, size: int, held: Held) -> None:
        self.rank, self.size, self.held = rank, size, held
        self.trace = Trace()
        self.everyone = self.new_group(list(range(size)))

    def is_initialized(self) -> bool:
        return self.size > 1

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.size

    def new_group(self, ranks: list[int], timeout: object = None) -> Group | None:
        if self.rank not in ranks:
            return None
        group = Group(tuple(ranks), len(self.trace.groups))
        self.trace.groups.append(group)
        return group

    def all_reduce(
        self, x: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Work | None:
        name = "max" if op == dist.ReduceOp.MAX else "sum"
        return self._collective("all_reduce", f"{name} of {_text(x)}", group, async_op, x)

    def all_gather_into_tensor(
        self, whole: Tensor, part: Tensor, group: Any = None, async_op: bool = False
    ) -> Work | None:
        self._check_parts("all_gather", whole, part, group)
        return self._collective("all_gather", _text(part), group, async_op, part, whole)

    def reduce_scatter_tensor(
        self, part: Tensor, whole: Tensor, group: Any = None, async_op: bool = False
    ) -> Work | None:
        self._check_parts("reduce_scatter", whole, part, group)
        return self._collective("reduce_scatter", _text(whole), group, async_op, whole, part)

    def all_to_all_single(
        self,
        received: Tensor,
        sent: Tensor,
        received_rows: list[int] | None = None,
        sent_rows: list[int] | None = None,
        group: Any = None,
    ) -> None:
        parts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        said = f"{sent.dtype} in rows of {tuple(sent.shape[1:])}"
        if received_rows is None or sent_rows is None:
            said = _text(sent)
            if sent.numel() != received.numel():
                raise DryRunError(f"all_to_all of {_text(sent)} into {_text(received)}")
        else:
            parts = tuple(received_rows), tuple(sent_rows)
        self._collective("all_to_all", said, group, False, sent, received, parts=parts)

    def broadcast(
        self, x: Tensor, src: int = -1, group: Any = None, group_src: int | None = None
    ) -> None:
        source = src if group_src is None else group_src
        self._collective("broadcast", f"{_text(x)} from {source}", group, False, x)

    def gather(self, x: Tensor, to: list[Tensor] | None, group: Any, group_dst: int) -> None:
        self._collective("gather", f"{_text(x)} to {group_dst}", group, False, x, *(to or ()))

    def scatter(self, x: Tensor, of: list[Tensor] | None, group: Any, group_src: int) -> None:
        self._collective("scatter", f"{_text(x)} from {group_src}", group, False, x, *(of or ()))

    def isend(self, x: Tensor, dst: int, group: Group) -> Work:
        self.held.see((x,))
        message = Message(group.place, "send", _text(x), dst, size_bytes=x.nbytes)
        return Work(self.trace, self.trace.begin(message))

    def recv(self, x: Tensor, src: int, group: Group) -> None:
        self.held.see((x,))
        Work(self.trace, self.trace.begin(Message(group.place, "recv", _text(x), src))).wait()

    def _check_parts(self, kind: str, whole: Tensor, part: Tensor, group: Group | None) -> None:
        ranks = (group or self.everyone or Group((0,), 0)).size()
        if whole.numel() != ranks * part.numel() or whole.dtype != part.dtype:
            raise DryRunError(
                f"{kind} over {ranks} ranks between a whole of {_text(whole)} and parts of "
                f"{_text(part)}"
            )

    def _collective(
        self,
        kind: str,
        said: str,
        group: Group | None,
        async_op: bool,
        given: Tensor,
        *others: Tensor,
        parts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    ) -> Work | None:
        self.held.see((given, *others))
        place = group.place if group is not None else 0
        message = Message(place, kind, said, parts=parts, size_bytes=given.nbytes)
        work = Work(self.trace, self.trace.begin(message))
        if async_op:
            return work
        work.wait()
        return None


_REPLACED = (
    "is_initialized", "get_rank", "get_world_size", "new_group", "all_reduce",
    "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast", "gather",
    "scatter", "isend", "recv",
)  # fmt: skip


@contextmanager
def alone(world: World) -> Iterator[None]:
    """Let torch.distributed be `world` for the caller."""
    before: dict[str, Callable] = {name: getattr(dist, name) for name in _REPLACED}
    for name in _REPLACED:
        setattr(dist, name, getattr(world, name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(dist, name, function)


def _text(x: Tensor) -> str:
    kind = str(x.dtype).removeprefix("torch.")
    return f"{x.numel():,} x {kind}"


META = torch.device("meta")
