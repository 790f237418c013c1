"""What ranks hold against every cut of a few units, and moments of schedules that repeat."""

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from pipelines import equal_pipeline

from meshwright.planner.bounds.lp import INF, Kind, Pipeline, bound_pipeline
from meshwright.planner.bounds.packing import may_pack
from meshwright.planner.pipeline.peak_moments import moment_arrays, peak_moments
from meshwright.planner.pipeline.schedule_table import Listing, ScheduleTable
from meshwright.planner.pipeline.schedules import (
    GENERATORS,
    make_schedule,
    maximin_moments,
    runs,
    stages_held,
)

COUNTS = [4, 5]  # of the two kinds between the ends


def _drawn(name: str, random: Random) -> Pipeline:
    """Draw bytes of two kinds between two ends, and a limit about where they begin to fit."""
    pipeline = equal_pipeline(name, 2, 6)

    def kind(of: Kind, count: int) -> Kind:
        kept = tuple(sorted(random.uniform(0, 3) for _ in of.kept))
        return replace(of, count=count, kept=kept, stored_bytes=random.uniform(0, 4))

    first, last, usual = pipeline.kinds
    kinds = kind(first, 1), kind(last, 1), *(kind(usual, count) for count in COUNTS)
    fixed = tuple(random.uniform(0, 3) for _ in pipeline.fixed_bytes)
    limit = random.uniform(15, 60)
    return replace(pipeline, kinds=kinds, fixed_bytes=fixed, limit_bytes=limit)


def _fits(pipeline: Pipeline, order: list[int], starts: tuple[int, ...]) -> bool:
    """Return whether each moment of each rank is within the limit, units in an order of kinds."""
    stages = list(zip(starts, (*starts[1:], len(order)), strict=True))
    for rank, moments in enumerate(pipeline.moments):
        mine = [s for s, home in enumerate(pipeline.stage_ranks) if home == rank]
        for held, waiting, _ in moments:
            total = pipeline.fixed_bytes[rank]
            for s in mine:
                for kind in (pipeline.kinds[number] for number in order[slice(*stages[s])]):
                    total += kind.stored_bytes + min(
                        held.get(s, 0) * kept + waiting.get(s, 0) * handed
                        for kept, handed in zip(kind.kept, kind.handed, strict=True)
                    )
            if total > pipeline.limit_bytes:
                return False
    return True


@pytest.mark.parametrize("name", GENERATORS)
def test_where_it_says_that_nothing_fits_no_cut_does(name: str) -> None:
    random, refused = Random(name), 0
    for _ in range(60):
        pipeline = _drawn(name, random)
        at = moment_arrays(pipeline.moments, pipeline.stage_ranks)
        between = [2] * COUNTS[0] + [3] * COUNTS[1]
        random.shuffle(between)
        order = [0, *between, 1]
        cuts = combinations(range(1, len(order)), pipeline.num_stages - 1)
        if not may_pack(pipeline, at):
            refused += 1
            assert not any(_fits(pipeline, order, (0, *cut)) for cut in cuts)
            assert bound_pipeline(pipeline).step_us == INF
    assert 5 < refused < 55


@pytest.mark.parametrize("limit", [9.0, 10.0, 10.5, 11.0, 12.0, 16.0])
def test_equal_units_fit_where_the_linear_program_has_a_solution(limit: float) -> None:
    pipeline = equal_pipeline("1f1b", 2, 6, limit)
    at = moment_arrays(pipeline.moments, pipeline.stage_ranks)
    assert may_pack(pipeline, at) == (bound_pipeline(pipeline).step_us < INF)


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("zb-h1", 1), ("zbv", 2)])
@pytest.mark.parametrize("pp", [2, 3, 8])
def test_what_ranks_hold_repeats_from_three_micro_batches_a_rank_on(
    name: str, chunks: int, pp: int
) -> None:
    _check_repeats(name, chunks, pp, range(3 * pp + 1, 6 * pp + 1))


@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaved_stages_repeat_likewise(chunks: int) -> None:
    _check_repeats("interleaved", chunks, 4, range(16, 33))


def _check_repeats(name: str, chunks: int, pp: int, counts: range) -> None:
    """Compare what is kept with what the schedule of all micro-batches itself says."""
    for m in counts:
        if not runs(name, pp, m):
            continue
        of = Listing(name, pp, m, chunks)
        schedule = make_schedule(name, pp, m, chunks)
        assert of.steady.num_microbatches <= 3 * pp < m
        for most_at_last in (True, False):
            whole = peak_moments(schedule, len(of.stage_ranks), most_at_last)
            assert ScheduleTable().peaks(of, most_at_last) == whole
        assert ScheduleTable().held(of) == stages_held(schedule, of.stage_ranks)
        assert ScheduleTable().maximin(of) == maximin_moments(schedule, of.stage_ranks)


def test_gpipe_holds_all_micro_batches() -> None:
    of = Listing("gpipe", 2, 40, 1)
    assert of.steady == of
    assert ScheduleTable().held(of) == [(40, 0), (40, 0)]
