"""Schedules as data: per pp rank an ordered list of actions over stages and micro-batches.

A rank holds one stage or several (chunks of an interleaved or V-shaped pipeline). Text form of an
action: stage, kind, micro-batch: `0F3`, `2SEND_F0`, `7W1`; `STEP` belongs to the rank.
`parse_action(str(a)) == a`.
"""

import re
from dataclasses import dataclass

from .errors import ParseError

# F forward, B backward, or its halves: I gradient of the stage's input, W gradients of its weights.
# SEND_F of stage s takes its output to stage s + 1, SEND_B its input's gradient to stage s - 1;
# RECV_F and RECV_B of a stage bring its own input and its output's gradient. STEP: the optimizer.
KINDS = ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "STEP")
COMPUTE = ("F", "B", "I", "W")
# Sends of one rank to another of one kind that may wait for their receives; the next one waits.
SENDS_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class Action:
    """stage, microbatch: -1 for STEP."""

    kind: str
    stage: int = -1
    microbatch: int = -1

    def __str__(self) -> str:
        return self.kind if self.stage < 0 else f"{self.stage}{self.kind}{self.microbatch}"


def parse_action(text: str) -> Action:
    if text == "STEP":
        return Action("STEP")
    match = re.fullmatch(r"(\d+)([A-Z_]+)(\d+)", text)
    if match is None or match[2] not in KINDS[:-1]:
        raise ParseError(
            f"not an action: {text!r}; expected stage, kind, micro-batch, kinds {', '.join(KINDS)}"
        )
    return Action(match[2], int(match[1]), int(match[3]))


Schedule = tuple[tuple[Action, ...], ...]  # by pp rank


def format_schedule(schedule: Schedule) -> str:
    return "".join(
        f"rank {rank}: {' '.join(map(str, actions))}\n" for rank, actions in enumerate(schedule)
    )


def parse_schedule(text: str) -> Schedule:
    ranks: list[tuple[Action, ...]] = []
    for line in text.splitlines():
        head, _, actions = line.partition(": ")
        if head != f"rank {len(ranks)}":
            raise ParseError(f"expected 'rank {len(ranks)}: ...', found {line!r}")
        ranks.append(tuple(parse_action(a) for a in actions.split()))
    return tuple(ranks)


def peer_stage(action: Action) -> int:
    """The stage at the other end of a transfer."""
    return action.stage + (1 if action.kind in ("SEND_F", "RECV_B") else -1)
