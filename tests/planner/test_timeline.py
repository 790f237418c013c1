"""The simulated step over time: streams that do one thing at a time, memory that peaks as said."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from families import traced

from meshwright.cli import main
from meshwright.ir.plan import Plan
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.report.measured_lanes import read_traces, side_by_side
from meshwright.planner.report.timeline_svg import WIDTH, timeline_svg
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.planner.simulate.predict import Prediction, predict
from meshwright.planner.simulate.timeline import memory_of, perfetto, streams_of

CLUSTER = parse_cluster("cpu:4")
PINS = [
    ("dp=4", "zero=3"),
    ("pp=2", "dp=2", "zero=2", "schedule=interleaved"),
    ("pp=4", "schedule=zb-h1"),
    ("pp=2", "tp=2", "schedule=zbv"),
    ("pp=2", "dp=2", "zero=1"),
]


@pytest.fixture(params=PINS, ids=" ".join)
def planned(request: pytest.FixtureRequest) -> tuple[Plan, Prediction]:
    pins = parse_pins([*request.param, "micro_batch=1"])
    plan = make_plan(traced("tiny-llama"), CLUSTER, seq=64, global_batch=16, pins=pins)
    return plan, predict(plan, CLUSTER)


def test_a_stream_does_one_thing_at_a_time(planned: tuple[Plan, Prediction]) -> None:
    _, prediction = planned
    timeline = streams_of(prediction)
    assert timeline.step_us == prediction.step_us
    compute = [e for e in timeline.events if e.stream == "compute"]
    assert tuple(compute) == prediction.timeline.events
    lanes: dict[tuple, float] = {}
    for event in timeline.events:
        kind = event.action if event.stream == "transfer" else ""  # a link a target and direction
        lane = event.rank, event.stream, kind.split("_")[0]
        if event.stream != "transfer":
            assert event.start_us >= lanes.get(lane, 0.0) - 1e-9, event
        lanes[lane] = event.end_us
        assert event.end_us >= event.start_us


def test_collectives_are_those_of_the_zero_level(planned: tuple[Plan, Prediction]) -> None:
    plan, prediction = planned
    kinds = {e.action.split()[0] for e in streams_of(prediction).events if e.stream == "collective"}
    gathers = {"gather"} if plan.zero == 3 else set()
    reduces = {"reduce"} if plan.mesh.size("dp") > 1 else set()
    assert kinds == gathers | reduces


def test_memory_over_time_peaks_as_predicted(planned: tuple[Plan, Prediction]) -> None:
    _, prediction = planned
    for rank, peak in enumerate(prediction.peaks):
        memory = memory_of(prediction, rank)
        assert memory.peak_bytes == pytest.approx(peak.total_bytes, rel=1e-12)
        ends = [0.0, *(s.end_us for s in memory.samples)]
        assert [s.start_us for s in memory.samples] == ends[:-1]
        assert ends[-1] == prediction.step_us
        assert memory.samples[-1].live_bytes == pytest.approx(0.0, abs=1.0)


def test_the_picture_and_the_trace_read_back(planned: tuple[Plan, Prediction]) -> None:
    plan, prediction = planned
    root = ElementTree.fromstring(timeline_svg(plan, prediction))
    said = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    actions = [e.action for e in prediction.timeline.events]
    assert all(any(text.startswith(f"{a}: ") for text in said) for a in actions)
    rows = json.loads(perfetto(prediction))["traceEvents"]
    slices = [row for row in rows if row["ph"] == "X" and row["tid"] == 0]
    assert [row["name"] for row in slices] == actions
    ends = [row for row in rows if row["name"] == "optimizer step"]
    assert all(row["ts"] + row["dur"] == pytest.approx(prediction.step_us) for row in ends)
    assert len(ends) == len(prediction.peaks) and all(row["dur"] > 0 for row in ends)
    assert {row["pid"] for row in rows} == set(range(len(prediction.peaks)))


def test_a_step_of_a_thousand_micro_batches_is_shown_by_its_ends() -> None:
    pins = parse_pins(["pp=4", "zero=3", "micro_batch=1", "schedule=1f1b"])
    cluster = parse_cluster("cpu:8")
    plan = make_plan(traced("tiny-llama"), cluster, seq=64, global_batch=2000, pins=pins)
    text = timeline_svg(plan, predict(plan, cluster))
    assert len(text) < 1e6
    said = "".join(ElementTree.fromstring(text).itertext())
    for word in ("left out", "usable 7.28 GiB", "optimizer step", "0F0", "0B999", " ms"):
        assert word in said, word
    assert "0F500" not in said
    boxes = [e.attrib for e in ElementTree.fromstring(text) if e.tag.endswith("rect")][1:]
    assert all(float(b["x"]) + float(b["width"]) <= WIDTH for b in boxes)


def test_the_command_draws_or_says_what_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.txt")
    sizes = ["plan", "tiny-llama", "--cluster", "cpu:2", "--seq", "64", "--global-batch", "8"]
    assert main([*sizes, "--pin", "pp=2", "-o", plan]) == 0
    for name in ("step.svg", "step.json"):
        assert main(["explain", plan, "--timeline", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 1000
    capsys.readouterr()
    assert main(["explain", plan, "--timeline", str(tmp_path / "step.gif")]) == 2
    assert "give a name that ends with .svg or .json" in capsys.readouterr().err


def annotated(prediction: Prediction, rank: int, begins: list[float], *, gpu: bool) -> str:
    """A profiler's trace of steps in which each action takes twice as long as simulated."""
    rows = [{"ph": "X", "name": "gloo:send", "cat": "user_annotation", "ts": 0.0, "dur": 1.0}]
    for begin in begins:
        spans = [("DATA stage 0", begin - 5.0, 5.0)]
        for event in (e for e in prediction.timeline.events if e.rank == rank):
            stage, kind, micro = re.fullmatch(r"(\d+)([A-Z]+)(\d+)", event.action).groups()
            name = f"{kind} stage {stage} micro-batch {micro}"
            took = 2 * (event.end_us - event.start_us)
            spans.append((name, begin + 2 * event.start_us, took))
        for cat in ("user_annotation", "gpu_user_annotation") if gpu else ("user_annotation",):
            late = 100.0 if cat == "user_annotation" and gpu else 0.0
            rows += [
                {"ph": "X", "name": name, "cat": cat, "ts": at + late, "dur": took}
                for name, at, took in spans
            ]
    return json.dumps({"traceEvents": rows, "host_name": "node1"})


@pytest.mark.parametrize("gpu", [False, True])
def test_measured_steps_lie_beside_the_simulated_one(tmp_path: Path, gpu: bool) -> None:
    """Of a GPU its own spans count, not those of the host that launched them."""
    pins = parse_pins(["pp=2", "dp=1", "micro_batch=1", "schedule=1f1b"])
    cluster = parse_cluster("cpu:2")
    plan = make_plan(traced("tiny-llama"), cluster, seq=64, global_batch=4, pins=pins)
    prediction = predict(plan, cluster)
    for rank in range(2):
        text = annotated(prediction, rank, [1e9, 1e9 + 1e6], gpu=gpu)
        (tmp_path / f"rank_{rank:05d}.json").write_text(text)
    rows = json.loads(side_by_side(prediction, read_traces(tmp_path)))["traceEvents"]
    names = {r["pid"]: r["args"]["name"] for r in rows if r["name"] == "process_name"}
    assert sorted(names.values()) == [
        "pp rank 0, predicted",
        "pp rank 1, predicted",
        "rank 0, measured",
        "rank 1, measured",
    ]
    found = {name: [r for r in rows if r["ph"] == "X" and names[r["pid"]] == name]
             for name in names.values()}  # fmt: skip
    for rank in range(2):
        predicted, measured = found[f"pp rank {rank}, predicted"], found[f"rank {rank}, measured"]
        first = {r["name"]: (r["ts"], r["dur"]) for r in predicted if r["ts"] < 1e6}
        seen = {r["name"]: (r["ts"], r["dur"]) for r in measured if -5 < r["ts"] < 1e6}
        actions = [name for name in seen if name != "DATA"]
        assert actions and all(seen[name][1] == pytest.approx(2 * first[name][1], rel=1e-3)
                               for name in actions)  # fmt: skip
        assert max(r["ts"] for r in predicted) >= 1e6, "once for each step"
    with pytest.raises(ValueError, match="0 traces of ranks"):
        read_traces(tmp_path / "none")


def test_measured_steps_are_asked_for_with_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.txt"
    sizes = ["--cluster", "cpu:1", "--seq", "8", "--global-batch", "1", "--no-search"]
    assert main(["plan", "tiny-llama", *sizes, "-o", str(plan)]) == 0
    for words in ([], ["--timeline", str(tmp_path / "a.svg")]):
        assert main(["explain", str(plan), *words, "--measured", str(tmp_path)]) == 2
        assert "give --timeline FILE.json, too" in capsys.readouterr().err
