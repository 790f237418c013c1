"""`meshwright explain`: why a plan is as it is."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from meshwright.api.identity import loss_name
from meshwright.api.plans import read_plan
from meshwright.api.proving import TRUSTED
from meshwright.ir.dtypes import HALVES
from meshwright.runtime.given import check_file_place

from .output import print_result
from .parsers import add_cluster, add_command
from .plan_file import cluster_of, spec_of
from .planning import plan_of

if TYPE_CHECKING:
    from meshwright.ir.plan import Plan
    from meshwright.planner.hardware.cluster import Cluster
    from meshwright.planner.report.explain import Costs


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "explain",
        _run,
        "Explain a plan: its decisions, pieces, memory and coverage; or one value, one segment, or "
        "why another decision was not taken.",
    )
    parser.add_argument("plan", help="a plan's file")
    _add_questions(parser.add_mutually_exclusive_group())
    parser.add_argument(
        "--measured",
        metavar="DIR",
        type=Path,
        help="for --timeline FILE.json: steps that `meshwright control profile` traced, as "
        "RUN/profile/step_00000011, drawn beside the simulated one",
    )
    parser.add_argument("--model", metavar="MODEL", help="for --why-not: where the plan's is from")
    add_cluster(parser)


def _add_questions(which: Any) -> None:
    which.add_argument("--value", metavar="V", help="a value's name, e.g. attention_q_linear")
    which.add_argument("--segment", metavar="S", help="a segment's name: each op's time and bytes")
    which.add_argument(
        "--timeline",
        metavar="FILE",
        type=Path,
        help="draw the simulated step, streams and memory over time: FILE.svg a picture, FILE.json "
        "a trace that Perfetto opens",
    )
    which.add_argument(
        "--why-not",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="search again under this pin and say what it would cost, e.g. tp=4",
    )


@dataclass(frozen=True)
class _Answer:
    """What is said. part: the kind of question, which names the format of its data."""

    part: str
    data: dict[str, Any]
    text: str


def _check_questions(arguments: argparse.Namespace) -> None:
    for name in ("value", "segment"):
        if getattr(arguments, name) == "":
            raise ValueError(f"--{name} '': give the name of one, as the whole report lists them")
    if arguments.model and not arguments.why_not:
        raise ValueError(
            f"--model {arguments.model} says where --why-not plans from; ask --why-not KEY=VALUE, "
            "or leave it out"
        )
    if arguments.timeline:
        check_file_place("--timeline", arguments.timeline)
    if arguments.measured and getattr(arguments.timeline, "suffix", "") != ".json":
        raise ValueError(
            f"--measured {arguments.measured}: drawn beside the simulated step in a trace; give "
            "--timeline FILE.json, too"
        )


def _run(arguments: argparse.Namespace) -> None:
    _check_questions(arguments)
    answer = _answer(read_plan(arguments.plan), arguments)
    print_result(arguments, answer.data, answer.text, answer.part)


def _answer(plan: "Plan", arguments: argparse.Namespace) -> _Answer:
    from meshwright.planner.report.explain import explain_value, value_facts
    from meshwright.planner.report.segments import explain_segment, segment_facts

    if arguments.why_not:
        return _why_not(plan, arguments)
    if name := arguments.value:
        text = explain_value(plan, name)
        return _Answer(
            "value", {"value": name.removeprefix("%"), "pieces": value_facts(plan, name)}, text
        )
    if name := arguments.segment:
        asked = plan, name, cluster_of(plan, arguments)
        return _Answer("segment", segment_facts(*asked), explain_segment(*asked))
    if arguments.timeline:
        cluster = cluster_of(plan, arguments)
        return _timeline(plan, cluster, arguments.timeline, arguments.measured)
    if arguments.cluster and (cluster := cluster_of(plan, arguments)).name != plan.cluster:
        return _whole(plan, *_priced_on(plan, cluster))
    return _whole(plan, _outdated(plan, arguments), plan.costs)


def _whole(plan: "Plan", note: str, costs: "Costs") -> _Answer:
    """The whole plan with these costs, behind a note."""
    from meshwright.planner.report.data import decision, ranks
    from meshwright.planner.report.explain import report

    data = {**decision(plan, costs), "ranks": ranks(plan), "note": note.strip() or None}
    return _Answer("plan", data, note + report(plan, costs))


def _priced_on(plan: "Plan", cluster: "Cluster") -> tuple[str, "Costs"]:
    """Price the plan on another cluster than it was made for; return a note and the costs."""
    from meshwright.planner.simulate.predict import predict, with_costs

    if plan.mesh.num_devices > cluster.num_devices:
        raise ValueError(
            f"--cluster {cluster.name}: the plan takes {plan.mesh.num_devices} devices, it holds "
            f"{cluster.num_devices}; give a larger one, or plan for it"
        )
    note = f"note: made for {plan.cluster}; the numbers are for {cluster.name}\n"
    return note, with_costs(plan, predict(plan, cluster), cluster).costs


def _outdated(plan: "Plan", arguments: argparse.Namespace) -> str:
    """Warn where a plan's numbers are of other decisions; "" where its cluster is not here."""
    from meshwright.planner.hardware.cluster import ClusterError
    from meshwright.planner.report.explain import outdated
    from meshwright.planner.simulate.predict import predict

    try:
        found = predict(plan, cluster_of(plan, arguments))
    except ClusterError:
        return ""
    return outdated(plan, found.step_us, found.peak_bytes)


def _timeline(plan: "Plan", cluster: "Cluster", path: Path, measured: Path | None) -> _Answer:
    """Draw the simulated step, and beside it what was measured; say what was written."""
    from meshwright.planner.report.measured_lanes import read_traces, side_by_side
    from meshwright.planner.report.timeline_svg import timeline_svg
    from meshwright.planner.simulate.predict import predict
    from meshwright.planner.simulate.timeline import perfetto

    if path.suffix not in (".svg", ".json"):
        raise ValueError(f"--timeline {path}: give a name that ends with .svg or .json")
    traces = read_traces(measured) if measured else []
    prediction = predict(plan, cluster)
    text = timeline_svg(plan, prediction) if path.suffix == ".svg" else perfetto(prediction)
    if traces:
        text = side_by_side(prediction, traces)
    path.write_text(text, encoding="utf-8")
    said = f"wrote {path}: a step of {prediction.step_us / 1e3:,.1f} ms on {cluster.name}"
    said += f", beside {len(traces)} measured ranks" if traces else ""
    data = {"file": str(path), "cluster": cluster.name, "step_time_s": prediction.step_us / 1e6}
    data |= {"measured_ranks": len(traces) or None}
    return _Answer("timeline", data, said)


def _why_not(plan: "Plan", arguments: argparse.Namespace) -> _Answer:
    """Compare the plan with the best one under the pins."""
    from meshwright.planner.report.diff import diff
    from meshwright.planner.report.search_data import diff_facts

    options = argparse.Namespace(
        seq=plan.seq,
        global_batch=plan.global_batch,
        dtype=plan.dtype,
        effort=plan.effort or "normal",
        pin=[*arguments.why_not],
        freeze=",".join(plan.frozen),
        update_router_bias=bool(plan.router_biases()),
        loss=loss_name(plan),
        trust_capture=TRUSTED in plan.coverage,
    )
    options.pin += _kept_pins(plan, {pin.partition("=")[0] for pin in arguments.why_not})
    with TemporaryDirectory() as folder:
        options.cluster = spec_of(plan, arguments, Path(folder))
        other = plan_of(arguments.model or plan.model, options).decisions
    pins, cluster = " ".join(arguments.why_not), cluster_of(plan, arguments)
    both = cluster, cluster
    data = {"pins": arguments.why_not, **diff_facts(plan, other, both)}
    text = f"the best plan with {pins} against this one:\n" + diff(plan, other, both)
    return _Answer("why-not", data, text)


def _kept_pins(plan: "Plan", asked: set[str]) -> list[str]:
    """Return pins for what the search does not choose, as the plan has it, but those asked for."""
    kept = {"optimizer": plan.optimizer}
    if plan.dtype in HALVES:
        kept["precision"] = plan.precision
    if plan.rounding and "precision" not in asked:
        kept["rounding"] = plan.rounding
    if plan.reduce_dtype != plan.grad_dtype:
        kept["reduce_dtype"] = plan.reduce_dtype
    return [f"{key}={value}" for key, value in kept.items() if key not in asked]
