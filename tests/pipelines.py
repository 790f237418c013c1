"""Pipelines of equal units, as linear programs are asked."""

from meshwright.planner.bounds.lp import Kind, Pipeline
from meshwright.planner.pipeline.closings import LAST
from meshwright.planner.pipeline.critical_path import waits_of
from meshwright.planner.pipeline.peak_moments import peak_moments
from meshwright.planner.pipeline.schedules import chunks_of, make_schedule, stage_ranks


def equal_kind(count: int, us: float, split: bool, kept: float = 1.0) -> Kind:
    """Return units of one option, whose forward takes `us`."""
    kinds = ("F", "I", "W") if split else ("F", "B", LAST)
    alone = {k: (us,) if k in ("F", "I", "W") else (2 * us,) for k in kinds}
    return Kind(count, alone, {}, 0.0, 0.0, 1.0, (kept,), (0.0,))


def equal_pipeline(name: str, p: int, m: int, limit: float | None = None) -> Pipeline:
    """Return a pipeline of equal units of f = 1 and b = 2, 4 a stage."""
    chunks, split = chunks_of(name, None), name.startswith("zb")
    stages = p * chunks
    kinds = (
        equal_kind(1, 1.0, split),
        equal_kind(1, 1.0, split),
        equal_kind(4 * stages - 2, 1.0, split),
    )
    return Pipeline(
        kinds,
        make_schedule(name, p, m, chunks),
        waits_of(make_schedule(name, p, m, chunks)),
        stage_ranks(name, p, chunks),
        {"F": 0.0, "B": 0.0, LAST: 0.0},
        (0.0,) * (stages - 1),
        0.38,
        limit,
        (0.0,) * p,
        (0.0, 0.0),
        peak_moments(make_schedule(name, p, m, chunks), stages, most_at_last=True),
    )
