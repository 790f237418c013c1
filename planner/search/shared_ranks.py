"""Options of units whose stages share a rank, or hold two kinds of memory.

A micro-batch of stage s counts as often as s has it in flight at most; the units of a rank give up
bytes where they cost least by that count, until the peak of its schedule fits.
"""

from collections.abc import Sequence

from ..pipeline.schedules import SPLIT, stage_ranks
from ..remat.selection import INF, Picks, select_along
from ..simulate.beside import beside
from ..simulate.stage_memory import StageMemory, memory_of_units, walk
from ..simulate.step_model import Unit
from .candidate_costs import CandidateCosts
from .candidates import Candidate


def shared_picks(
    costs: CandidateCosts,
    c: Candidate,
    starts: Sequence[int],
    limit_bytes: float,
    stays: bool = False,
) -> Picks | None:
    """The option of every unit under cuts, rank by rank; None where one of them does not fit.

    stays: nothing is offloaded.
    """
    stops = (*starts[1:], len(costs.units_of(c).options))
    stages = [range(*ends) for ends in zip(starts, stops, strict=True)]
    homes = stage_ranks(c.schedule, c.pp, c.chunks)
    picks: dict[int, int] = {}
    known = _known(costs, c, limit_bytes)
    for rank in range(c.pp):
        mine = {s: stages[s] for s, home in enumerate(homes) if home == rank}
        key = rank, stays, *mine.values()
        if key not in known:
            known[key] = _rank_picks(costs, c, rank, mine, limit_bytes, stays)
        if (found := known[key]) is None:
            return None
        picks |= found
    return tuple(picks[index] for index in range(len(picks)))


def _known(
    costs: CandidateCosts, c: Candidate, limit_bytes: float
) -> dict[tuple, dict[int, int] | None]:
    """Return the picks of ranks by what they follow from, of the last candidate alone: cuts that
    differ by one unit share most ranks."""
    problem = costs.problem
    known = costs.memo.table("picks of ranks", problem.read_by_bounds, problem.budget)
    key = costs.placed(c.compute), c, limit_bytes
    if key not in known:
        known.clear()
    found: dict[tuple, dict[int, int] | None] = known.setdefault(key, {})
    return found


def _rank_picks(
    costs: CandidateCosts,
    c: Candidate,
    rank: int,
    stages: dict[int, range],
    limit_bytes: float,
    stays: bool,
) -> dict[int, int] | None:
    units, split = costs.units_of(c), c.schedule in SPLIT
    computing = costs.memo.schedules.computing(c.listing)[rank]
    indices = [index for within in stages.values() for index in within]
    stored = sum(units.options[i][0].owned_bytes for i in indices)
    moving = beside(units.options[i][0].bucket_bytes for i in indices)
    free = limit_bytes - costs.problem.context_bytes(c)
    free -= costs.storage_bytes(c, stored, moving)
    held = costs.memo.schedules.held(c.listing)
    counts = {i: held[s] for s, within in stages.items() for i in within}
    staying = set(indices) if stays else {within[-1] for within in stages.values()}
    points = [
        [
            (INF, INF)
            if i in staying and unit.work.away_bytes
            else (sum(us), _weight(unit, split, *counts[i]))
            for us, unit in zip(units.overlapped[i], units.options[i], strict=True)
        ]
        for i in indices
    ]

    known: dict[tuple[int, Picks], StageMemory] = {}

    def memory(stage: int, picks: Picks) -> StageMemory:
        if (stage, picks) not in known:
            picked = [units.options[i][k] for i, k in zip(stages[stage], picks, strict=True)]
            known[stage, picks] = memory_of_units(picked, split)
        return known[stage, picks]

    def fits(picks: Picks) -> bool:
        memories, end = {}, 0
        for stage, within in stages.items():  # in the order of `indices`
            start, end = end, end + len(within)
            memories[stage] = memory(stage, picks[start:end])
        return walk(computing, memories).total_bytes <= free

    found = select_along(points, fits, costs.problem.budget)
    return None if found is None else dict(zip(indices, found, strict=True))


def _weight(unit: Unit, split: bool, held: int, waiting: int) -> float:
    """Bytes of a unit on its rank, at most."""
    handed = unit.work.split.handed_bytes if split and unit.work.split else 0.0
    return held * unit.work.kept_bytes + waiting * handed
