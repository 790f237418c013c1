"""Schedule generators: lists of actions, nothing else; communication is inserted by a pass.

GPipe (Huang et al. 2019): all forwards, then all backwards. 1F1B (Narayanan et al. 2021,
PipeDream-flush): warm-up of min(m, p - stage - 1) forwards, then one forward and one backward in
turn, so that at most p - stage micro-batches are in flight.
"""

from meshwright.ir.errors import PlanError
from meshwright.ir.schedule import Action, Schedule

GENERATORS = ("1f1b", "gpipe")


def make_schedule(name: str, num_stages: int, num_microbatches: int) -> Schedule:
    """Compute actions of every stage with transfers and the step inserted, validated."""
    if name not in GENERATORS:
        raise PlanError(f"schedule={name}: unknown; give one of {', '.join(GENERATORS)}")
    make = _gpipe if name == "gpipe" else _one_f_one_b
    compute = [make(stage, num_stages, num_microbatches) for stage in range(num_stages)]
    schedule = tuple(_with_transfers(a, s, num_stages) for s, a in enumerate(compute))
    validate(schedule)
    return schedule


def _gpipe(stage: int, num_stages: int, m: int) -> list[Action]:
    return [Action("F", i) for i in range(m)] + [Action("B", i) for i in range(m)]


def _one_f_one_b(stage: int, num_stages: int, m: int) -> list[Action]:
    warmup = min(m, num_stages - stage - 1)
    actions = [Action("F", i) for i in range(warmup)]
    for i in range(m - warmup):
        actions += [Action("F", warmup + i), Action("B", i)]
    return actions + [Action("B", i) for i in range(m - warmup, m)]


def _with_transfers(actions: list[Action], stage: int, num_stages: int) -> tuple[Action, ...]:
    out: list[Action] = []
    for action in actions:
        forward = action.kind == "F"
        receives = stage > 0 if forward else stage < num_stages - 1
        sends = stage < num_stages - 1 if forward else stage > 0
        if receives:
            out.append(Action(f"RECV_{action.kind}", action.microbatch))
        out.append(action)
        if sends:
            out.append(Action(f"SEND_{action.kind}", action.microbatch))
    return (*out, Action("STEP"))


def validate(schedule: Schedule) -> None:
    """Every send has its receive in the same order, and the lists run to the end together.

    Receives block, sends do not. On failure the stage x step grid is in the message.
    """
    position = [0] * len(schedule)
    sent: set[tuple[int, str, int]] = set()
    progress = True
    while progress:
        progress = False
        for stage, actions in enumerate(schedule):
            while position[stage] < len(actions) and _ready(actions[position[stage]], stage, sent):
                action = actions[position[stage]]
                if action.kind.startswith("SEND"):
                    target = stage + 1 if action.kind.endswith("F") else stage - 1
                    sent.add((target, action.kind[-1], action.microbatch))
                position[stage] += 1
                progress = True
    if any(p < len(a) for p, a in zip(position, schedule, strict=True)):
        raise PlanError(f"the schedule deadlocks:\n{grid(schedule, position)}")


def _ready(action: Action, stage: int, sent: set[tuple[int, str, int]]) -> bool:
    if not action.kind.startswith("RECV"):
        return True
    return (stage, action.kind[-1], action.microbatch) in sent


def grid(schedule: Schedule, position: list[int]) -> str:
    """One line a stage, an arrow at the action it cannot pass."""
    lines = []
    for stage, actions in enumerate(schedule):
        cells = [("-> " if i == position[stage] else "") + str(a) for i, a in enumerate(actions)]
        lines.append(f"  stage {stage}: {' '.join(cells)}")
    return "\n".join(lines)


def in_flight(actions: tuple[Action, ...]) -> int:
    """The most micro-batches whose activations a stage holds at once."""
    held = peak = 0
    for action in actions:
        held += {"F": 1, "B": -1}.get(action.kind, 0)
        peak = max(peak, held)
    return peak
