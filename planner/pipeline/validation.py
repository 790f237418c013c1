"""The one proof that a schedule is sound, whoever made it.

Order: on its rank, every stage runs F before B, or F before I before W, of every micro-batch, each
once; what it needs from another rank is received before, and sent on after.

Channels: transfers from one rank to another of one kind (F or B) share a communicator and match in
order alone (NCCL knows no tags), so both ends must list them in the same order.

Progress: the lists run to the end together, when a receive waits for its send and a send waits
until fewer than SENDS_IN_FLIGHT before it on its channel wait for their receives.
"""

from collections import defaultdict

from meshwright.ir.errors import PlanError
from meshwright.ir.schedule import SENDS_IN_FLIGHT, Action, Schedule, peer_stage

Channel = tuple[int, int, str]  # source rank, target rank, F or B


def validate(
    schedule: Schedule, ranks: tuple[int, ...], num_microbatches: int, silent: int = 0
) -> None:
    """ranks: the pp rank of every stage. silent: how many of the first stages get no gradient of
    their output. Raises PlanError; the message holds the grid with arrows.

    An arrow points at the action that a rank cannot pass.
    """
    for rank, actions in enumerate(schedule):
        _check_order(actions, rank, ranks, num_microbatches, silent)
    _check_channels(schedule, ranks)
    _check_progress(schedule, ranks)


def _check_order(
    actions: tuple[Action, ...],
    rank: int,
    ranks: tuple[int, ...],
    num_microbatches: int,
    silent: int,
) -> None:
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    for action in actions[:-1]:
        found[action.stage, action.microbatch].append(action.kind)
    mine = [s for s, home in enumerate(ranks) if home == rank]
    expected = {(s, i) for s in mine for i in range(num_microbatches)}
    if set(found) != expected or actions[-1:] != (Action("STEP"),):
        wrong = sorted(set(found) ^ expected)
        what = f"(stage, micro-batch) {wrong[:4]}" if wrong else "STEP at the end"
        raise PlanError(f"rank {rank}: missing or not its own: {what} of {len(expected)}")
    for (stage, microbatch), kinds in found.items():
        allowed = _orders(stage, ranks, silent)
        if kinds not in allowed:
            raise PlanError(
                f"rank {rank}: stage {stage} runs {' '.join(kinds)} of micro-batch {microbatch}, "
                f"expected {' or '.join(' '.join(order) for order in allowed)}"
            )


def _orders(stage: int, ranks: tuple[int, ...], silent: int) -> list[list[str]]:
    """What a stage may do with a micro-batch, in order; a W may come before its I is sent on."""
    before = stage > 0 and ranks[stage - 1] != ranks[stage]
    after = stage < len(ranks) - 1 and ranks[stage + 1] != ranks[stage]
    head = ["RECV_F"] * before + ["F"] + ["SEND_F"] * after
    head += ["RECV_B"] * (after and stage >= silent)
    send = ["SEND_B"] * (before and stage > silent)
    return [head + ["B", *send], head + ["I", *send, "W"]]


def channel(action: Action, ranks: tuple[int, ...]) -> Channel:
    """Return what a transfer goes through."""
    here, there = ranks[action.stage], ranks[peer_stage(action)]
    pair = (here, there) if action.kind.startswith("SEND") else (there, here)
    return (*pair, action.kind[-1])


def message(action: Action) -> tuple[int, int]:
    """Return what a transfer moves: (stage it comes from, micro-batch)."""
    sender = action.stage if action.kind.startswith("SEND") else peer_stage(action)
    return sender, action.microbatch


def is_transfer(action: Action) -> bool:
    return action.kind[:4] in ("SEND", "RECV")


def _check_channels(schedule: Schedule, ranks: tuple[int, ...]) -> None:
    ends: dict[str, dict[Channel, list]] = {"SEND": defaultdict(list), "RECV": defaultdict(list)}
    for actions in schedule:
        for action in actions:
            if is_transfer(action):
                ends[action.kind[:4]][channel(action, ranks)].append(message(action))
    for key in sorted(ends["SEND"].keys() | ends["RECV"].keys()):
        pairs = zip(ends["SEND"][key], ends["RECV"][key], strict=False)
        place = next((n for n, (sent, got) in enumerate(pairs) if sent != got), None)
        if place is not None or len(ends["SEND"][key]) != len(ends["RECV"][key]):
            sent, got = (ends[end][key][place or 0 :][:4] for end in ("SEND", "RECV"))
            raise PlanError(
                f"transfers {key[2]} from rank {key[0]} to {key[1]} do not match in order: from "
                f"number {place or 0} on (stage, micro-batch) {sent} are sent, {got} received"
            )


def _check_progress(schedule: Schedule, ranks: tuple[int, ...]) -> None:
    position = [0] * len(schedule)
    made: set[tuple[str, int, int]] = set()
    counts: dict[tuple[str, Channel], int] = defaultdict(int)

    def passes(action: Action) -> bool:
        if not is_transfer(action):
            return _given(action, ranks, made)
        key = channel(action, ranks)
        waiting = counts["SEND", key] - counts["RECV", key]
        return waiting > 0 if action.kind[:4] == "RECV" else waiting < SENDS_IN_FLIGHT

    moving = True
    while moving:
        moving = False
        for rank, actions in enumerate(schedule):
            while position[rank] < len(actions) and passes(actions[position[rank]]):
                action = actions[position[rank]]
                if is_transfer(action):
                    counts[action.kind[:4], channel(action, ranks)] += 1
                made.add((action.kind, action.stage, action.microbatch))
                position[rank] += 1
                moving = True
    if any(p < len(a) for p, a in zip(position, schedule, strict=True)):
        raise PlanError(f"the schedule deadlocks:\n{grid(schedule, position)}")


def _given(action: Action, ranks: tuple[int, ...], made: set[tuple[str, int, int]]) -> bool:
    """Whether a neighbouring stage of the same rank has handed over what the action reads."""
    step = {"F": -1, "B": 1, "I": 1}.get(action.kind, 0)
    other = action.stage + step
    if not step or not 0 <= other < len(ranks) or ranks[other] != ranks[action.stage]:
        return True
    kinds = ("F",) if action.kind == "F" else ("B", "I")
    return any((kind, other, action.microbatch) in made for kind in kinds)


def grid(schedule: Schedule, position: list[int]) -> str:
    """One line a rank, an arrow at the action it cannot pass."""
    lines = []
    for rank, actions in enumerate(schedule):
        cells = [("-> " if i == position[rank] else "") + str(a) for i, a in enumerate(actions)]
        lines.append(f"  rank {rank}: {' '.join(cells)}")
    return "\n".join(lines)
