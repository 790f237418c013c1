"""Longest paths through a schedule: what a step waits for when its actions take their times.

An action starts after the one before it on its rank and after what it receives has come; a path is
a chain of such waits, and the step is as long as the longest of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.ir.schedule import COMPUTE, Action, Schedule, peer_stage

from .closings import LAST, Ending, Node, Stretch, closing_actions, endings_of, stretches_of


@dataclass(frozen=True)
class Path:
    """The number of times a chain of waits passes each node, and each transfer, by the earlier of
    its stages; the node that it ends with, and what follows that.

    along: by number, stretches that it passes from end to end on their rank; within: that of its
    last action, -1 for none.
    """

    nodes: dict[Node, int]
    sends: dict[int, int]
    end: Node
    ending: Ending
    along: tuple[int, ...]
    within: int

    def until_its_end(self) -> "Path":
        """Return the path up to its last action, without it."""
        nodes = {**self.nodes, self.end: self.nodes[self.end] - 1}
        ends_in = self.within if self.end[1] != LAST else -1
        return replace(self, nodes=nodes, along=tuple(k for k in self.along if k != ends_in))

    def sends_us(self, send_us: Sequence[float]) -> float:
        return sum(count * send_us[stage] for stage, count in self.sends.items())


@dataclass(frozen=True)
class Waits:
    """Compute actions of all ranks, each after what it waits for.

    before: of each the one before it on its rank, source what it receives from, -1 for none; send:
    the earlier stage of that transfer. ranks: of each rank its actions in order.
    """

    nodes: tuple[Node, ...]
    before: tuple[int, ...]
    source: tuple[int, ...]
    send: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]

    def longest(
        self, node_us: Mapping[Node, float], send_us: Sequence[float]
    ) -> tuple[float, Path]:
        """The longest path and how long it is."""
        found = self.timed(node_us, send_us)
        last = max((actions[-1] for actions in self.ranks), key=found.end_us)
        return found.end_us(last), found.path(last)

    def timed(self, node_us: Mapping[Node, float], send_us: Sequence[float]) -> "Timed":
        """Return when each action ends, where its kind takes so long."""
        return Timed(self, *self._ends(node_us, send_us))

    def longest_us(self, node_us: Mapping[Node, float], send_us: Sequence[float]) -> float:
        """Return how long the longest path is."""
        ends, _ = self._ends(node_us, send_us)
        return max(ends[actions[-1] + 1] for actions in self.ranks)

    def _ends(
        self, node_us: Mapping[Node, float], send_us: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Return when each action ends, after a 0 where none is before; and by action what the
        transfer to it takes, 0 for none."""
        distinct, which, before, source = self._rows
        us = [node_us[node] for node in distinct]
        each = list(map(us.__getitem__, which))
        sends = list(map([*send_us, 0.0].__getitem__, self.send))  # -1 is of what receives nothing
        ends = [0.0]
        add = ends.append
        for taken, ahead, maker, send in zip(each, before, source, sends, strict=True):
            start, arrival = ends[ahead], ends[maker] + send
            add((arrival if arrival > start else start) + taken)
        return ends, sends

    @cached_property
    def _rows(self) -> tuple[list[Node], list[int], list[int], list[int]]:
        """The distinct nodes, and of each action the index of its node, and the places among ends
        of the one before it and of its source."""
        numbers = {node: k for k, node in enumerate(dict.fromkeys(self.nodes))}
        which = [numbers[node] for node in self.nodes]
        before, source = ([index + 1 for index in of] for of in (self.before, self.source))
        return list(numbers), which, before, source

    def path(self, index: int, earlier: Callable[[int], int]) -> Path:
        """Return the path to an action. earlier: gives the one that an action waits for, -1 for
        none."""
        end = index
        passed: list[int] = []
        sent: list[int] = []
        beside: list[int] = []
        while index >= 0:
            passed.append(index)
            before = earlier(index)
            if before >= 0 and before == self.source[index]:
                sent.append(self.send[index])
            else:
                beside.append(index)
            index = before
        return self._path(end, Counter(self._nodes_of(passed)), Counter(sent), beside)

    def _path(
        self, end: int, nodes: Counter[Node], sends: Counter[int], beside: Iterable[int]
    ) -> Path:
        """Return a path that ends with an action. beside: the actions that it comes to from the one
        before them on their rank."""
        passed = Counter(map(self._stretch_of.__getitem__, beside))
        whole = [k for k, n in passed.items() if k >= 0 and n == len(self.stretches[k].actions)]
        ends = self.nodes[end], self.endings[end], tuple(sorted(whole)), self._stretch_of[end]
        return Path(dict(nodes), dict(sends), *ends)

    def _nodes_of(self, actions: Iterable[int]) -> Iterator[Node]:
        return map(self.nodes.__getitem__, actions)

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        return tuple(stretches_of(self.nodes, self.ranks))

    @cached_property
    def endings(self) -> dict[int, Ending]:
        """Return the ending of each action."""
        return endings_of(self.nodes, self.ranks)

    @cached_property
    def closings(self) -> tuple[tuple[int, ...], ...]:
        """Return by rank the actions that reductions of a stage start from, and its last one."""
        return tuple(closing_actions(self.nodes, actions) for actions in self.ranks)

    @cached_property
    def _stretch_of(self) -> list[int]:
        """Return by action the number of its stretch, -1 for none."""
        found = [-1] * len(self.nodes)
        for number, stretch in enumerate(self.stretches):
            for index in stretch.actions:
                found[index] = number
        return found

    @cached_property
    def plain(self) -> tuple[Path, ...]:
        """Return paths that go through the stages to a rank, along its actions, and end there: with
        the last action of a stage that reductions start from, or the rank's last of all."""
        return tuple(self._plain())

    def _plain(self) -> Iterator[Path]:
        for actions, stops in zip(self.ranks, self.closings, strict=True):
            start = next(i for i in actions if self.nodes[i][1] == "F")
            for stop in stops:
                if start <= stop:
                    yield self._along(actions, start, (stop,))
                    if len(through := self._received_from(stop)) > 1:
                        yield self._along(actions, start, through)

    def _received_from(self, index: int) -> tuple[int, ...]:
        """Return an action and those that one after another wait for what it sends."""
        found = [index]
        while (after := self._receiver.get(found[-1])) is not None:
            found.append(after)
        return tuple(found)

    @cached_property
    def _receiver(self) -> dict[int, int]:
        """Return by action the one that receives what it sends."""
        return {source: index for index, source in enumerate(self.source) if source >= 0}

    def _along(self, actions: tuple[int, ...], start: int, through: tuple[int, ...]) -> Path:
        """Return the path through the stages to a start, along the actions to the first of
        `through`, and through those."""
        stop, *after = through
        passed = [i for i in actions if start < i <= stop]
        arriving = self.path(start, self.source.__getitem__)
        nodes = Counter(self._nodes_of((*passed, *after))) + Counter(arriving.nodes)
        sends = Counter(arriving.sends) + Counter(map(self.send.__getitem__, after))
        return self._path(through[-1], nodes, sends, passed)


@dataclass(frozen=True)
class Timed:
    """When each action ends, after a 0 where none is before; what the transfer to each takes."""

    waits: Waits
    ends: list[float]
    sends: list[float]

    def end_us(self, index: int) -> float:
        return self.ends[index + 1]

    def path(self, index: int) -> Path:
        """Return the longest path to an action."""
        return self.waits.path(index, self._waited)

    def _waited(self, index: int) -> int:
        """Return what an action waits for longest."""
        before, source = self.waits.before[index], self.waits.source[index]
        received = source >= 0 and self.ends[source + 1] + self.sends[index] > self.ends[before + 1]
        return source if received else before


def waits_of(schedule: Schedule) -> Waits:
    """Return what the compute actions of a schedule wait for."""
    ranks = [[a for a in actions if a.kind in COMPUTE] for actions in schedule]
    received = {
        (a.stage, a.kind[-1], a.microbatch): a
        for actions in schedule
        for a in actions
        if a.kind.startswith("RECV")
    }
    return _Order(ranks, received).waits()


class _Order:
    def __init__(self, ranks: list[list[Action]], received: dict[tuple, Action]) -> None:
        self.ranks, self.received = ranks, received
        self.index: dict[Action, int] = {}
        self.rows: list[tuple[Node, int, int, int]] = []
        self.last = {(a.stage, a.kind): a for actions in ranks for a in actions}

    def waits(self) -> Waits:
        position = [0] * len(self.ranks)
        mine: list[list[int]] = [[] for _ in self.ranks]
        left = sum(map(len, self.ranks))
        while left:
            for rank, actions in enumerate(self.ranks):
                while position[rank] < len(actions) and self._take(actions, position[rank]):
                    mine[rank].append(len(self.rows) - 1)
                    position[rank] += 1
                    left -= 1
        nodes, before, source, send = zip(*self.rows, strict=True)
        return Waits(nodes, before, source, send, tuple(map(tuple, mine)))

    def _take(self, actions: list[Action], at: int) -> bool:
        """Whether an action's turn has come."""
        a = actions[at]
        source, send = -1, -1
        if (receive := self._receive(a)) is not None:
            peer = peer_stage(receive)
            maker = Action(_maker(receive, self.last), peer, a.microbatch)
            if maker not in self.index:
                return False
            source, send = self.index[maker], min(peer, a.stage)
        before = self.index[actions[at - 1]] if at else -1
        self.index[a] = len(self.rows)
        kind = LAST if a.kind == "B" and self.last[a.stage, "B"] == a else a.kind
        self.rows.append(((a.stage, kind), before, source, send))
        return True

    def _receive(self, a: Action) -> Action | None:
        way = {"F": "F", "B": "B", "I": "B"}.get(a.kind, "")
        return self.received.get((a.stage, way, a.microbatch))


def _maker(receive: Action, last: dict) -> str:
    """The kind of action that makes what is received."""
    if receive.kind == "RECV_F":
        return "F"
    return "I" if (receive.stage, "I") in last else "B"
