"""Whether the messages of ranks meet: each finds its counterparts, and no rank waits for ever.

Every rank begins its messages in order. The k-th message of a communicator is one collective when
all of its members have begun it; the k-th send from one rank to another meets the k-th receive. A
rank that waits for a message goes on once that has met its counterparts.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from .world import DryRunError, Message, Trace

_LISTED = 4  # ranks that an error names


@dataclass
class _Rank:
    """Progress of a rank.

    members: of its communicators, by place, those that were run. names: of its communicators, by
    place, the same on each member. begun: by message its channel and its number there.
    """

    rank: int
    trace: Trace
    members: list[frozenset[int]]
    names: list[int]
    event: int = 0
    begun: list[tuple["_Channel", int]] = field(default_factory=list)


@dataclass
class _Channel:
    """Messages by member in order of their beginning, each with the event that it is.

    ranks: of the communicator, members or not.
    """

    ranks: tuple[int, ...]
    by_member: dict[int, list[tuple[Message, int]]]

    def met(self, number: int) -> bool:
        return all(len(messages) > number for messages in self.by_member.values())


def check_meetings(traces: dict[int, Trace]) -> None:
    """Raise DryRunError where messages differ, or ranks wait for each other.

    traces: by rank, of some of the world's; the others of a communicator are passed over.
    """
    here = frozenset(traces)
    known: dict[tuple, int] = {}
    ranks = [
        _Rank(rank, trace, [here.intersection(g.ranks) for g in trace.groups], _names(trace, known))
        for rank, trace in sorted(traces.items())
    ]
    channels: dict[tuple, _Channel] = {}
    moved = True
    while moved:
        moved = False
        for rank in ranks:
            moved |= _advance(rank, channels, traces)
    stuck = [rank for rank in ranks if rank.event < len(rank.trace.events)]
    if stuck:
        waits = "; ".join(_waiting(rank) for rank in stuck[:_LISTED])
        more = f"; and {len(stuck) - _LISTED} ranks more" if len(stuck) > _LISTED else ""
        raise DryRunError(f"ranks wait for each other: {waits}{more}")


def _names(trace: Trace, known: dict[tuple, int]) -> list[int]:
    """Name communicators by their members, and those of the same ones in order of their making."""
    counts: dict[tuple[int, ...], int] = defaultdict(int)
    found = []
    for group in trace.groups:
        counts[group.ranks] += 1
        found.append(known.setdefault((group.ranks, counts[group.ranks]), len(known)))
    return found


def _advance(rank: _Rank, channels: dict[tuple, _Channel], traces: dict[int, Trace]) -> bool:
    """Let a rank begin messages until it waits for one that has not met; tell whether it moved."""
    first, events = rank.event, rank.trace.events
    while rank.event < len(events):
        event = events[rank.event]
        if isinstance(event, int):
            channel, number = rank.begun[event]
            if not channel.met(number):
                break
        else:
            _begin(rank, event, channels, traces)
        rank.event += 1
    return rank.event > first


def _begin(
    rank: _Rank, message: Message, channels: dict[tuple, _Channel], traces: dict[int, Trace]
) -> None:
    ranks = rank.trace.groups[message.place].ranks
    key: tuple = (rank.names[message.place],)
    members = rank.members[message.place]
    if message.kind in ("send", "recv"):
        ends = (rank.rank, message.peer)
        key = (*key, *(ends if message.kind == "send" else ends[::-1]))
        members = members.intersection(ends)
    if key not in channels:
        channels[key] = _Channel(ranks, {member: [] for member in sorted(members)})
    channel = channels[key]
    own = channel.by_member[rank.rank]
    number = len(own)
    own.append((message, rank.event))
    rank.begun.append((channel, number))
    for other, messages in channel.by_member.items():
        if other != rank.rank and len(messages) > number:
            its, event = messages[number]
            if not _same(message, its) or not _parts_fit(message, its, rank.rank, other, ranks):
                one = _said(message, rank.rank, rank.trace, rank.event)
                raise DryRunError(f"{one} where {_said(its, other, traces[other], event)}")


def _said(message: Message, rank: int, trace: Trace, event: int) -> str:
    return f"rank {rank} is in {message.kind} of {message.said} ({trace.action_at(event)})"


def _same(one: Message, two: Message) -> bool:
    if one.said != two.said:
        return False
    kinds = {one.kind, two.kind}
    return kinds == {"send", "recv"} or (len(kinds) == 1 and not kinds & {"send", "recv"})


def _parts_fit(one: Message, two: Message, rank: int, other: int, ranks: tuple[int, ...]) -> bool:
    """Tell whether what each sends to the other is what the other receives."""
    if not (one.parts[0] and two.parts[0]):
        return True
    here, there = ranks.index(rank), ranks.index(other)
    (received, sent), (its_received, its_sent) = one.parts, two.parts
    return sent[there] == its_received[here] and received[there] == its_sent[here]


def _waiting(rank: _Rank) -> str:
    event = rank.trace.events[rank.event]
    assert isinstance(event, int)
    message = [e for e in rank.trace.events[: rank.event] if isinstance(e, Message)][event]
    return _said(message, rank.rank, rank.trace, rank.event)
