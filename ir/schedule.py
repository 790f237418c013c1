"""Schedules as data: per stage an ordered list of actions over micro-batches.

Text form of an action: kind, then the micro-batch where it has one: `F0`, `SEND_F0`, `B3`, `STEP`.
`parse_action(str(a)) == a`.
"""

import re
from dataclasses import dataclass

from .errors import ParseError

# F forward, B backward; transfers of activations (F) and their gradients (B); STEP optimizer.
KINDS = ("F", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "STEP")


@dataclass(frozen=True, slots=True)
class Action:
    kind: str
    microbatch: int = -1

    def __str__(self) -> str:
        return self.kind if self.microbatch < 0 else f"{self.kind}{self.microbatch}"


def parse_action(text: str) -> Action:
    match = re.fullmatch(r"([A-Z_]+?)(\d*)", text)
    if match is None or match[1] not in KINDS:
        raise ParseError(f"not an action: {text!r}; kinds are {', '.join(KINDS)}")
    return Action(match[1], int(match[2]) if match[2] else -1)


Schedule = tuple[tuple[Action, ...], ...]  # by stage


def format_schedule(schedule: Schedule) -> str:
    return "".join(
        f"stage {stage}: {' '.join(map(str, actions))}\n" for stage, actions in enumerate(schedule)
    )


def parse_schedule(text: str) -> Schedule:
    stages: list[tuple[Action, ...]] = []
    for line in text.splitlines():
        head, _, actions = line.partition(": ")
        if head != f"stage {len(stages)}":
            raise ParseError(f"expected 'stage {len(stages)}: ...', found {line!r}")
        stages.append(tuple(parse_action(a) for a in actions.split()))
    return tuple(stages)
