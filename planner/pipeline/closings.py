"""Where the last reductions of a stage start in a schedule, and which actions they may run beside.

Gradients of a stage are complete after its last backward, or where a backward is split, after its
last W, or its last I where a unit has no W. They are reduced from there on, behind those of stages
of the rank that closed before.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LAST = "last"  # a backward in one of the last micro-batch of its stage

Node = tuple[int, str]  # a stage and a kind of action

# Whether an action that reductions start from starts only those of units that W completes.
_BY_WEIGHTS = {"I": False, LAST: False, "W": True}


@dataclass(frozen=True)
class Stretch:
    """Actions of a rank beside which reductions may run of `stage` and of those that closed before
    it: from its last W on, or after its last backward in one; up to where the next stage closes.

    actions: in order, with a last backward in one that the stretch ends with; nodes: how often each
    node occurs, but for that.
    """

    rank: int
    stage: int
    actions: tuple[int, ...]
    nodes: dict[Node, int]


@dataclass(frozen=True)
class Ending:
    """What a path that ends with an action waits for. rank: whose last action it is, -1 for none.

    closes: stages of the rank whose reductions all start in this action or later, each with whether
    only those that W starts do.
    """

    rank: int
    closes: tuple[tuple[int, bool], ...]


def stretches_of(nodes: Sequence[Node], ranks: Sequence[Sequence[int]]) -> Iterator[Stretch]:
    """Yield the stretches of all ranks, of each in order. nodes: of actions; ranks: of each rank
    its actions in order."""
    for rank, actions in enumerate(ranks):
        closing = {nodes[i][0]: k for k, i in enumerate(actions) if nodes[i][1] in (LAST, "W")}
        split = any(nodes[i][1] == "W" for i in actions)
        starts = sorted((k + (not split), stage) for stage, k in closing.items())
        stops = [*(start for start, _ in starts[1:]), len(actions)]
        for (start, stage), stop in zip(starts, stops, strict=False):
            mine = tuple(actions[start:stop])
            counts = Counter(nodes[i] for i in mine if nodes[i][1] != LAST)
            yield Stretch(rank, stage, mine, dict(counts))


def endings_of(nodes: Sequence[Node], ranks: Sequence[Sequence[int]]) -> dict[int, Ending]:
    """Return the ending of each action. nodes, ranks: as `stretches_of` takes them."""
    found = {}
    for rank, actions in enumerate(ranks):
        starts: dict[int, bool] = {}  # what starts from an action on, by stage
        ending = Ending(rank, ())
        for index in reversed(actions):
            stage, kind = nodes[index]
            by_weights = _BY_WEIGHTS.get(kind)
            if by_weights is not None and starts.get(stage) not in (by_weights, False):
                starts[stage] = by_weights
                ending = Ending(ending.rank, tuple(sorted(starts.items())))
            found[index] = ending
            if ending.rank >= 0:
                ending = Ending(-1, ending.closes)
    return found


def closing_actions(nodes: Sequence[Node], actions: Sequence[int]) -> tuple[int, ...]:
    """Return the actions of a rank that the last reductions of a stage start from, and its last
    one. actions: of the rank, in order."""
    last = {nodes[i]: i for i in actions if nodes[i][1] in _BY_WEIGHTS}
    return tuple(sorted({*last.values(), actions[-1]}))
