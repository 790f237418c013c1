"""What each pp rank computes and in which order: lists of actions, nothing else.

GPipe (Huang et al. 2019): all forwards, then all backwards. 1F1B (Narayanan et al. 2021,
PipeDream-flush): warm-up of min(m, p - rank - 1) forwards, then one forward and one backward in
turn, so that at most p - rank micro-batches are in flight. Interleaved 1F1B (the same, section
2.2): a rank holds v chunks, stages rank, rank + p, ...; micro-batches pass them in groups of p.

ZB-H1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", figure 3): 1F1B with the backward split
in I and W; rank r runs W r micro-batches late, so that the I of the last rank come early and W
fills what 1F1B leaves idle; no more micro-batches are in flight than on 1F1B's first rank.

ZBV (the same, section 6; Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): two
chunks in a V, stages rank and 2p - 1 - rank, so that the last stage is on the first rank.
"""

from collections.abc import Iterator

from meshwright.ir.schedule import Action


def gpipe(rank: int, p: int, m: int) -> list[Action]:
    return [Action(kind, rank, i) for kind in "FB" for i in range(m)]


def one_f_one_b(rank: int, p: int, m: int) -> list[Action]:
    forward = [Action("F", rank, i) for i in range(m)]
    backward = [Action("B", rank, i) for i in range(m)]
    return _one_by_one(forward, backward, p - rank - 1)


def _one_by_one(forward: list[Action], backward: list[Action], warmup: int) -> list[Action]:
    """Forwards of the warm-up, one and one in turn, then the backwards left over."""
    steady = [a for pair in zip(forward[warmup:], backward, strict=False) for a in pair]
    return forward[:warmup] + steady + backward[len(forward[warmup:]) :]


def interleaved(rank: int, p: int, m: int, chunks: int) -> list[Action]:
    """m must be a multiple of p."""

    def action(kind: str, index: int) -> Action:
        group, place = divmod(index, p * chunks)
        chunk = place // p if kind == "F" else chunks - 1 - place // p
        return Action(kind, chunk * p + rank, group * p + place % p)

    forward = [action("F", k) for k in range(m * chunks)]
    backward = [action("B", k) for k in range(m * chunks)]
    return _one_by_one(forward, backward, 2 * (p - rank - 1) + (chunks - 1) * p)


def zb_h1(rank: int, p: int, m: int) -> list[Action]:
    actions: list[Action] = []
    done = 0  # micro-batches whose input gradient is made
    for action in one_f_one_b(rank, p, m):
        if action.kind == "F":
            actions.append(action)
            continue
        actions.append(Action("I", rank, action.microbatch))
        done += 1
        if done > rank:
            actions.append(Action("W", rank, done - 1 - rank))
    return actions + [Action("W", rank, i) for i in range(max(0, m - rank), m)]


def zbv(rank: int, p: int, m: int) -> list[Action]:
    """The pattern needs 2p - 1 micro-batches; with fewer, those beyond m are left out of it."""
    order = _zbv_order(rank, p, max(m, 2 * p - 1))
    return [action for action in order if action.microbatch < m]


def _zbv_order(rank: int, p: int, m: int) -> list[Action]:
    stages = {"down": rank, "up": 2 * p - 1 - rank}
    counts: dict[tuple[str, str], int] = {}

    def next_of(kind: str, arm: str) -> Action:
        number = counts.get((kind, arm), 0)
        counts[kind, arm] = number + 1
        return Action(kind, stages[arm], number)

    return [next_of(kind, arm) for kind, arm in _zbv_pattern(rank, p, m)]


def _zbv_pattern(rank: int, p: int, m: int) -> Iterator[tuple[str, str]]:
    """(kind, arm of the V) in order; micro-batches count up within each."""
    down, up = "down", "up"
    filled = 2 * (p - rank) - 1
    yield from [("F", down)] * filled
    yield from [("F", up), ("F", down)] * rank
    yield from [("F", up), ("I", up), ("W", up)] * (p - rank)
    started, returned = filled + rank, p  # forwards done: of the down arm, of the up arm
    while returned < m:
        if started < m:
            yield "F", down
            started += 1
        yield from [("I", down), ("W", down), ("F", up), ("I", up), ("W", up)]
        returned += 1
    yield from _zbv_ending(rank, p, m)


def _zbv_ending(rank: int, p: int, m: int) -> Iterator[tuple[str, str]]:
    """I of both arms first, as other ranks wait for them; W fills the time between."""
    late = rank  # up-arm I that the steady part left
    yield from [("I", "down"), ("I", "up")] * late
    yield from [("I", "down"), ("W", "down")] * (p - rank)
    yield from [("W", "up")] * late
    yield from [("W", "down")] * late
