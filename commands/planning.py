"""Planning as `plan`, `train` and `explain --why-not` ask for it."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.ir.capture.export import Traced
    from meshwright.ir.plan import Plan
    from meshwright.models import ModelSource
    from meshwright.planner.hardware.cluster import Cluster
    from meshwright.planner.search.pins import Pins
    from meshwright.planner.search.search import Found
    from meshwright.planner.simulate.predict import Prediction

from .doing import Doing
from .identity import identity_of
from .proving import proven

Say = Callable[[str], None]


@dataclass(frozen=True)
class Search:
    """A search beside its plan. proof: of the capture, in words."""

    found: "Found"
    prediction: "Prediction"
    proof: str

    def report(self, plan: "Plan") -> str:
        """Return why the plan is as it is."""
        from meshwright.planner.report.report import search_report

        return f"{search_report(plan, self.found, self.prediction)}\n{self.proof}\n"


_MOST_ROWS = 1_000_000  # of a step; schedules of more micro-batches are not searched in time


def make_plan_of(
    model: str, options: argparse.Namespace, stoppable: bool = False
) -> tuple["Plan", "Search | None"]:
    """Plan a model spec under plan options; return the plan, and the search where there was one.

    What is being done stands on stderr. stoppable: Ctrl-C ends the search with the best plan so
    far. Raises ValueError for bad options.
    """
    source = _named(model, options)
    demanded = _demanded(options)
    with Doing() as say:
        return _planned(source, *demanded, options, say, stoppable)


def _planned(
    source: "ModelSource",
    cluster: "Cluster",
    pins: "Pins",
    options: argparse.Namespace,
    say: Doing,
    stoppable: bool,
) -> tuple["Plan", "Search | None"]:
    from meshwright.planner.budget import EFFORTS
    from meshwright.planner.clock import Clock
    from meshwright.planner.search.make_plan import make_plan
    from meshwright.planner.search.search import search_plan
    from meshwright.planner.search.stopping import Stop

    clock = Clock()
    with clock.layer("tracing"):
        traced, proof = _trace(source, options, say)
    identity = identity_of(source, traced).text()
    sizes = {"seq": options.seq, "global_batch": options.global_batch}
    if not _searches(options):
        say(proof)
        plan = make_plan(traced, cluster, **sizes, pins=pins, progress=say)
        return replace(plan, identity=identity), None
    plan, found, prediction = search_plan(
        traced,
        cluster,
        **sizes,
        pins=pins,
        progress=say,
        budget=EFFORTS[getattr(options, "effort", "normal")],
        clock=clock,
        stop=Stop(stoppable),
    )
    say.close(f"planned; time by layer: {clock.text()}")
    return replace(plan, identity=identity), Search(found, prediction, proof)


def _named(model: str, options: argparse.Namespace) -> "ModelSource":
    """Return the model, whose name and rows are checked before anything slow is imported."""
    from meshwright.models import load_model

    source = load_model(model)
    _check_sizes(options)
    _check_positions(source, options.seq)
    return source


def _demanded(options: argparse.Namespace) -> tuple["Cluster", "Pins"]:
    """Return cluster and pins, checked against each other before anything is traced."""
    from meshwright.planner.hardware.cluster_file import parse_cluster
    from meshwright.planner.search.demands import check_pins
    from meshwright.planner.search.pins import parse_pins

    cluster, pins = parse_cluster(_spec(options)), parse_pins(options.pin)
    options.dtype = options.dtype or ("f32" if cluster.device.type == "cpu" else "bf16")
    check_pins(cluster, options.global_batch, options.dtype, pins, search=_searches(options))
    return cluster, pins


def _spec(options: argparse.Namespace) -> str:
    """The cluster's name with the memories that are given."""
    given = {name: getattr(options, name, "") for name in ("gpu_memory", "host_memory")}
    return ",".join([options.cluster, *(f"{key}={size}" for key, size in given.items() if size)])


def _searches(options: argparse.Namespace) -> bool:
    return getattr(options, "search", True)


def _check_sizes(options: argparse.Namespace) -> None:
    for name in ("seq", "global_batch"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(options, name)}: at least 1")
    if options.global_batch > _MOST_ROWS:
        raise ValueError(
            f"--global-batch {options.global_batch}: at most {_MOST_ROWS} rows of --seq tokens; "
            "is it a number of tokens"
        )


def _check_positions(source: "ModelSource", seq: int) -> None:
    if source.max_seq is not None and seq > source.max_seq:
        raise ValueError(f"--seq {seq} is past the {source.max_seq} positions of {source.name}")


def _check_lengths(traced: "Traced", seq: int) -> None:
    least, most = traced.lengths
    if seq < least or (most is not None and seq > most):
        raise ValueError(
            f"--seq {seq}: the forward of {traced.model} takes rows of {least} to {most or 'any'} "
            "tokens; give one of these, or change what in it depends on the length"
        )


def _trace(source: "ModelSource", options: argparse.Namespace, say: Say) -> tuple["Traced", str]:
    """Return the captured model, and what the report says of its proof."""
    from meshwright.ir.capture.export import trace
    from meshwright.ir.capture.freezing import parse_freeze

    say(f"tracing {source.name}")
    freeze = parse_freeze(getattr(options, "freeze", ""))
    traced = trace(source.build, source.name, options.dtype, source.vocab_size, freeze)
    say(f"{len(traced.segmented.instances)} segments, {len(traced.joints)} of them unique")
    _check_lengths(traced, options.seq)
    trust, full = (getattr(options, name, False) for name in ("trust_capture", "prove_full"))
    return proven(source, traced, trust=trust, full=full, say=say)
