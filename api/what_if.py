"""What-if queries: one model on many clusters, at many sizes, that nobody needs to own."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .demands import Cluster, Job, Say, cluster_of, silent
from .errors import one_class
from .here import at_hand
from .modules import Model, load_model
from .planning import check_demands, check_positions, proven_capture, usual_dtype
from .plans import Plan

if TYPE_CHECKING:
    from meshwright.models import ModelSource
    from meshwright.planner.what_if.answers import Answer
    from meshwright.planner.what_if.edits import Point
    from meshwright.planner.what_if.prices import Prices


@one_class
def what_if(
    model: Model,
    *,
    clusters: Sequence[Cluster | str],
    job: Job,
    sweeps: Sequence[str] = (),
    prices: Path | None = None,
    say: Say = silent,
) -> "list[Answer]":
    """Search every cluster at every combination of the sweeps' values for its best plan.

    sweeps: NAME=VALUE,VALUE,... as `meshwright what-if --help` has them; they replace what the
    cluster and the job say. prices: a file of figures beside those that are built in. Raises
    MeshwrightError for bad input; a point that nothing fits is an answer without a step.
    """
    asked, read = _points(clusters, job, sweeps, say), _prices(prices)
    return list(_searched(load_model(model), asked, job, read, say))


@one_class
def priced(
    plan: Plan,
    *,
    clusters: Sequence[Cluster | str],
    sweeps: Sequence[str] = (),
    prices: Path | None = None,
) -> "list[Answer]":
    """Price a plan as it stands on other clusters, each of as many devices; nothing is searched."""
    from meshwright.planner.what_if.ask import priced as price

    made = plan.decisions
    job = Job(seq=made.seq, global_batch=made.global_batch)
    return list(price(made, _points(clusters, job, sweeps, silent), _prices(prices)))


def _points(
    clusters: Sequence[Cluster | str], job: Job, sweeps: Sequence[str], say: Say
) -> "list[Point]":
    from meshwright.planner.what_if.edits import parse_sweep, points

    specs = [at_hand(cluster_of(cluster), say).spec for cluster in clusters]
    return points(specs, [parse_sweep(text) for text in sweeps], job.seq, job.global_batch)


def _prices(own: Path | None) -> "Prices":
    from meshwright.planner.what_if.prices import read_prices

    return read_prices(own)


def _check(source: "ModelSource", points: "list[Point]", job: Job) -> None:
    for point in points:
        check_demands(replace(job, seq=point.seq, global_batch=point.global_batch))
        check_positions(source, point.seq)


def _searched(
    source: "ModelSource", points: "list[Point]", job: Job, prices: "Prices", say: Say
) -> "Iterator[Answer]":
    """Answer the points of each dtype together; return the answers in the order asked."""
    from meshwright.planner.budget import EFFORTS
    from meshwright.planner.search.pins import parse_pins
    from meshwright.planner.what_if.ask import searched

    pins = parse_pins(job.pin_texts)
    _check(source, points, job)
    dtypes = {job.dtype or usual_dtype(point.cluster) for point in points}
    found: dict[int, Answer] = {}
    for dtype in sorted(dtypes):
        mine = [p for p in points if (job.dtype or usual_dtype(p.cluster)) == dtype]
        traced, _ = proven_capture(source, replace(job, dtype=dtype, seq=mine[0].seq), say)
        answers = searched(traced, mine, pins, prices, EFFORTS[job.effort], say)
        found.update(zip(map(id, mine), answers, strict=True))
    yield from (found[id(point)] for point in points)
