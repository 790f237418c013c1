"""From a model to its capture, and to a plan."""

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from meshwright.ir.errors import PlanError

from .capturing import captured
from .demands import Cluster, Job, Say, check_capturing, check_kinds, cluster_of, silent
from .errors import one_class
from .here import at_hand
from .identity import identity_of
from .losses import loss_of
from .modules import Model, load_model
from .plans import Plan
from .proving import proven
from .twin_ahead import twin_ahead

if TYPE_CHECKING:
    from meshwright.ir.traced import Traced
    from meshwright.models import ModelSource
    from meshwright.planner.hardware.cluster import Cluster as Hardware
    from meshwright.planner.search.pins import Pins

_MOST_ROWS = 1_000_000  # of a step; schedules of more micro-batches are not searched in time


@one_class
def trace(
    model: Model,
    *,
    dtype: str = "f32",
    freeze: str = "",
    loss: object = "",
    say: Say = silent,
) -> "Traced":
    """Capture a model: its graph, segments, and forward with backward of each unique one.

    dtype: of parameters and compute, f32, bf16 or f64. freeze, loss: as Job has them. Neither
    weights nor a GPU are needed. Raises MeshwrightError for a model that cannot be captured as it
    stands.
    """
    source = load_model(model)
    check_capturing(dtype, freeze)
    return captured(source, dtype, freeze, loss_of(loss, source.vocab_size), say)[0]


@one_class
def plan(
    model: Model,
    *,
    cluster: Cluster | str,
    job: Job,
    say: Say = silent,
    stoppable: bool = False,
    processes: int | None = None,
) -> Plan:
    """Plan a model for a cluster: prove its capture, then search over all that is not pinned.

    say: takes each line of progress. stoppable: Ctrl-C ends the search with the best plan so far,
    where there is one. processes: that search at once, None for one a core and 4 at most; the plan
    is the same for any number. Raises MeshwrightError for demands that do not fit together,
    and where no plan fits the devices, with the nearest changes that would.
    """
    source = _named(model, job)
    hardware, pins = _demanded(at_hand(cluster_of(cluster), say), job)
    dtype = job.dtype or usual_dtype(hardware)
    given = replace(job, dtype=dtype), say, stoppable, searching(processes)
    return _planned(source, hardware, pins, *given)


def _planned(
    source: "ModelSource",
    hardware: "Hardware",
    pins: "Pins",
    job: Job,
    say: Say,
    stoppable: bool,
    processes: int,
) -> Plan:
    from meshwright.planner import budget
    from meshwright.planner.clock import Clock
    from meshwright.planner.hardware.cluster_file import own_text
    from meshwright.planner.report.report import search_report
    from meshwright.planner.search.make_plan import make_plan
    from meshwright.planner.search.search import search_plan
    from meshwright.planner.search.stopping import Stop

    clock = Clock()
    with clock.layer("capture and proof"):
        own, proof = proven_capture(source, job, say, processes)
        traced = trained_capture(own, job, say)
    identity, figures = identity_of(source, own, job.loss).text(), own_text(hardware)
    if not job.search:
        say(proof)
        made = make_plan(
            traced, hardware, seq=job.seq, global_batch=job.global_batch, pins=pins, progress=say
        )
        return Plan(replace(made, identity=identity, cluster_text=figures))
    made, found, prediction = search_plan(
        traced,
        hardware,
        seq=job.seq,
        global_batch=job.global_batch,
        pins=pins,
        progress=say,
        budget=budget.EFFORTS[job.effort],
        clock=clock,
        stop=Stop(stoppable),
        processes=processes,
    )
    say(f"planned; time by layer: {clock.text()}")
    made = replace(made, identity=identity, cluster_text=figures)
    return Plan(
        made, f"{search_report(made, found, prediction)}\n{proof}\n", found, prediction, proof
    )


def searching(processes: int | None) -> int:
    """Return the processes of a search. Raises PlanError for less than one, and for far more than
    there are cores."""
    from meshwright.planner.search.ahead import usual_processes

    if processes is not None and processes < 1:
        raise PlanError(f"--processes {processes}: at least 1, the search itself")
    most = max(8, 4 * (os.cpu_count() or 1))
    if processes is not None and processes > most:
        raise PlanError(f"--processes {processes}: at most {most} here, four a core")
    return processes or usual_processes()


def _named(model: Model, job: Job) -> "ModelSource":
    """Return the model, whose name and rows are checked before anything slow is imported."""
    source = load_model(model)
    check_demands(job)
    check_positions(source, job.seq)
    return source


def _demanded(cluster: Cluster, job: Job) -> tuple["Hardware", "Pins"]:
    """Return cluster and pins, checked against each other before anything is traced."""
    from meshwright.planner.hardware.cluster_file import parse_cluster
    from meshwright.planner.search.demands import check_pins
    from meshwright.planner.search.pins import parse_pins

    hardware, pins = parse_cluster(cluster.spec), parse_pins(job.pin_texts)
    dtype = job.dtype or usual_dtype(hardware)
    check_pins(hardware, job.global_batch, dtype, pins, search=job.search)
    return hardware, pins


def usual_dtype(hardware: "Hardware") -> str:
    """Return the dtype of plans for a cluster that say none."""
    return "f32" if hardware.device.type == "cpu" else "bf16"


def check_demands(job: Job) -> None:
    """Raise ValueError for values, sizes or an effort that no plan can have."""
    from meshwright.runtime.launch.job import EFFORTS

    check_kinds(job)
    if job.effort not in EFFORTS:
        raise PlanError(f"effort {job.effort!r}: give one of {', '.join(EFFORTS)}")
    for name in ("seq", "global_batch"):
        if getattr(job, name) < 1:
            raise PlanError(f"--{name.replace('_', '-')} {getattr(job, name)}: at least 1")
    if job.seq == 1:
        raise PlanError("--seq 1: rows of one token are refused; give 2 or more")
    if job.global_batch > _MOST_ROWS:
        raise PlanError(
            f"--global-batch {job.global_batch}: at most {_MOST_ROWS} rows of --seq tokens; "
            "is it a number of tokens"
        )


def check_positions(source: "ModelSource", seq: int) -> None:
    """Raise PlanError where a model has fewer positions than a row has tokens."""
    if source.max_seq is not None and seq > source.max_seq:
        raise PlanError(
            f"--seq {seq} is past the {source.max_seq} positions of {source.name}; give at most "
            f"{source.max_seq}"
        )


def proven_capture(
    source: "ModelSource", job: Job, say: Say, processes: int = 1
) -> tuple["Traced", str]:
    """Return the captured model, and what the report says of its proof.

    processes: that may run at once.
    """
    own_loss = loss_of(job.loss, source.vocab_size)
    trust, full = job.trust_capture, job.prove_full
    alone = processes == 1 or trust or full
    with nullcontext() if alone else twin_ahead(source, job.dtype, own_loss, job.seq) as ahead:
        traced, key = captured(source, job.dtype, job.freeze, own_loss, say, job.seq)
        ways = {"trust": trust, "full": full, "freezes": bool(job.freeze)}
        return proven(source, traced, own_loss, key, say=say, ahead=ahead, **ways)


def trained_capture(traced: "Traced", job: Job, say: Say) -> "Traced":
    """Return a capture with what a job trains beside what the loss does."""
    if not job.update_router_bias:
        return traced
    from meshwright.ir.capture.router_bias import with_updated_biases

    say("training the biases of routers by how their choices fall")
    return with_updated_biases(traced)
