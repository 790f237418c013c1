"""Steps of stages with given times, for the simulator."""

from collections.abc import Sequence

from hypothesis import strategies as st

from meshwright.planner.cost.piece_cost import Phase, PieceWork, SplitWork
from meshwright.planner.pipeline.schedules import make_schedule, stage_ranks
from meshwright.planner.simulate.step_model import StepModel, Unit


def times() -> st.SearchStrategy[tuple[float, ...]]:
    """Forward, input gradient and weight gradient of a stage, in us."""
    return st.tuples(*[st.floats(0.1, 1e4)] * 3)


def phase(us: float, peak_bytes: float = 0.0) -> Phase:
    return Phase(us, 0.0, 0.0, 0.0, peak_bytes)


def unit(f: float, b: float, w: float | None = None, **changes: float) -> Unit:
    """One unit; with w its backward is split, b being the input's gradient."""
    split = None if w is None else SplitWork(phase(b), phase(w), 0.0, True)
    work = PieceWork(phase(f), phase(b + (w or 0.0)), 0.0, 0.0, 0.0, 0.0, split)
    fields = dict.fromkeys(
        (
            "accumulate_us",
            "sums_us",
            "gather_us",
            "reduce_us",
            "blocking_us",
            "bucket_bytes",
            "owned_bytes",
        ),
        0.0,
    )
    return Unit("u", work, **(fields | changes))


def model(
    name: str,
    stages: Sequence[tuple[float, ...]],
    m: int,
    send_us: float = 0.0,
    chunks: int = 1,
    **changes: float,
) -> StepModel:
    """stages: (forward, backward) of each, or (forward, input gradient, weight gradient)."""
    p = len(stages) // chunks
    zeros = (0.0,) * p
    ranks = stage_ranks(name, p, chunks)
    sends = [send_us if a != b else 0.0 for a, b in zip(ranks, (*ranks[1:], -1), strict=True)]
    return StepModel(
        tuple((unit(*us, **changes),) for us in stages),
        ranks,
        make_schedule(name, p, m, chunks),
        0,
        False,
        m,
        tuple(sends),
        zeros,
        zeros,
        zeros,
        0.0,
    )
