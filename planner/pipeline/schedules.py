"""Schedules of a pipeline: the generators' lists with transfers and the step, proven sound."""

from meshwright.ir.errors import PlanError
from meshwright.ir.schedule import Action, Schedule

from . import generators
from .validation import validate

GENERATORS = ("1f1b", "gpipe", "interleaved", "zb-h1", "zbv")
PLAIN = ("1f1b", "gpipe")  # one stage a rank, backward in one
SPLIT = ("zb-h1", "zbv")  # backward in two parts, I and W
FORWARDS_FIRST = "gpipe"  # all forwards of a rank before its first backward


def check_name(name: str) -> None:
    if name not in GENERATORS:
        raise PlanError(f"schedule={name}: unknown; give one of {', '.join(GENERATORS)}")


def chunks_of(name: str, pinned: int | None) -> int:
    """Stages of a rank. Raises PlanError where the pin is not what the schedule has."""
    if name == "interleaved":
        if pinned == 1:
            raise PlanError("chunks=1: interleaved needs 2 or more stages a rank; or take 1f1b")
        return pinned or 2
    chunks = 2 if name == "zbv" else 1
    if pinned not in (None, chunks):
        raise PlanError(
            f"chunks={pinned}: {name} has {chunks} a rank; pin schedule=interleaved for others"
        )
    return chunks


def stage_ranks(name: str, pp: int, chunks: int) -> tuple[int, ...]:
    """The pp rank of every stage: in turn, or there and back for a V."""
    ranks = tuple(range(pp))
    return ranks + ranks[::-1] if name == "zbv" else ranks * chunks


def make_schedule(
    name: str, pp: int, num_microbatches: int, chunks: int | None = None, silent: int = 0
) -> Schedule:
    """Actions of every rank with transfers and the step inserted, validated.

    silent: how many of the first stages need no gradient of their output (nothing trains there).
    Raises PlanError for an unknown name, or sizes that the schedule cannot take.
    """
    check_name(name)
    chunks = chunks_of(name, chunks)
    schedule = listed(name, pp, num_microbatches, chunks, silent)
    validate(schedule, stage_ranks(name, pp, chunks), num_microbatches, silent)
    return schedule


def listed(name: str, pp: int, num_microbatches: int, chunks: int, silent: int = 0) -> Schedule:
    """Return what `make_schedule` does, not validated: a search prices hundreds of schedules.

    The schedule of the plan that it returns is made and validated by `make_schedule`.
    """
    check_sizes(name, pp, num_microbatches)
    compute = [_compute(name, rank, pp, num_microbatches, chunks) for rank in range(pp)]
    return with_transfers(compute, stage_ranks(name, pp, chunks), silent)


def has_chunks(name: str, chunks: int) -> bool:
    """Return whether a schedule can have `chunks` stages on every rank."""
    return chunks > 1 if name == "interleaved" else chunks == chunks_of(name, None)


def runs(name: str, pp: int, num_microbatches: int) -> bool:
    """Return whether a schedule can run `num_microbatches` micro-batches on `pp` ranks."""
    if pp == 1:
        return name in PLAIN
    return name != "interleaved" or num_microbatches % pp == 0


def check_sizes(name: str, pp: int, num_microbatches: int) -> None:
    """Raise PlanError where a schedule cannot run `num_microbatches` micro-batches on `pp` ranks.

    The message says which numbers it can run.
    """
    if runs(name, pp, num_microbatches):
        return
    if pp == 1:
        raise PlanError(f"schedule={name} with pp=1: there is no bubble to fill; pin pp, or 1f1b")
    below = num_microbatches - num_microbatches % pp
    near = f"{below} or {below + pp}" if below else f"{pp}"
    raise PlanError(
        f"schedule={name}: {num_microbatches} micro-batches do not divide by pp={pp}; "
        f"take {near}, or another schedule"
    )


def _compute(name: str, rank: int, pp: int, m: int, chunks: int) -> list[Action]:
    if name == "interleaved":
        return generators.interleaved(rank, pp, m, chunks)
    make = {
        "1f1b": generators.one_f_one_b,
        "gpipe": generators.gpipe,
        "zb-h1": generators.zb_h1,
        "zbv": generators.zbv,
    }[name]
    return make(rank, pp, m)


def with_transfers(
    compute: list[list[Action]], ranks: tuple[int, ...], silent: int = 0
) -> Schedule:
    """Receives right before what reads them, sends right after what makes them, STEP at the end.

    Between two stages of one rank nothing moves, and no gradient to the first `silent` stages.
    """
    return tuple((*_transferred(actions, ranks, silent), Action("STEP")) for actions in compute)


def _transferred(actions: list[Action], ranks: tuple[int, ...], silent: int) -> list[Action]:
    def moves(way: str, stage: int, step: int) -> bool:
        other = stage + step
        if not 0 <= other < len(ranks) or ranks[other] == ranks[stage]:
            return False
        return way == "F" or min(stage, other) >= silent

    out: list[Action] = []
    for action in actions:
        way = {"F": "F", "B": "B", "I": "B"}.get(action.kind)
        step = 1 if way == "F" else -1
        if way and moves(way, action.stage, -step):
            out.append(Action(f"RECV_{way}", action.stage, action.microbatch))
        out.append(action)
        if way and moves(way, action.stage, step):
            out.append(Action(f"SEND_{way}", action.stage, action.microbatch))
    return out


def in_flight(actions: tuple[Action, ...]) -> int:
    """The most (stage, micro-batch) pairs that a rank holds something of at once."""
    held = peak = 0
    for action in actions:
        held += {"F": 1, "B": -1, "W": -1}.get(action.kind, 0)
        peak = max(peak, held)
    return peak


def most_held(actions: tuple[Action, ...], stage: int) -> tuple[int, int]:
    """The most micro-batches of a stage between F and B or I, and the most between I and W."""
    kept = waiting = most_kept = most_waiting = 0
    for action in actions:
        if action.stage == stage:
            kept += {"F": 1, "B": -1, "I": -1}.get(action.kind, 0)
            waiting += {"I": 1, "W": -1}.get(action.kind, 0)
            most_kept, most_waiting = max(most_kept, kept), max(most_waiting, waiting)
    return most_kept, most_waiting


def stages_held(schedule: Schedule, ranks: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return most_held of every stage; ranks: of the stages."""
    return [most_held(schedule[rank], stage) for stage, rank in enumerate(ranks)]


def maximin_moments(schedule: Schedule, ranks: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return by stage the micro-batches between F and B or I, and between I and W, at one moment.

    The moment of a rank is where the least of its stages holds most. ranks: of the stages.
    """
    found = [(0, 0)] * len(ranks)
    for rank, actions in enumerate(schedule):
        held = {stage: [0, 0] for stage, home in enumerate(ranks) if home == rank}
        best = (0, 0)
        for action in actions[:-1]:
            counts = held[action.stage]
            counts[0] += {"F": 1, "B": -1, "I": -1}.get(action.kind, 0)
            counts[1] += {"I": 1, "W": -1}.get(action.kind, 0)
            sums = [sum(pair) for pair in held.values()]
            if (min(sums), sum(sums)) > best:
                best = min(sums), sum(sums)
                for stage, pair in held.items():
                    found[stage] = pair[0], pair[1]
    return tuple(found)
