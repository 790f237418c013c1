"""What separates two plans, op by op and decision by decision: the parts add up to the whole."""

import re
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from families import traced

from meshwright.cli import main
from meshwright.ir.errors import PlanError
from meshwright.ir.plan import Plan
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.report.diff import compared, diff, differences
from meshwright.planner.report.segments import explain_segment
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.planner.simulate.predict import predict
from meshwright.planner.simulate.step_model import step_model

CLUSTER = parse_cluster("h200:4")


def planned(*pins: str) -> Plan:
    return make_plan(
        traced("tiny-llama"), CLUSTER, seq=64, global_batch=16, pins=parse_pins(list(pins))
    )


PAIRS = {
    "zero": (("dp=4", "zero=0"), ("dp=4", "zero=3"), ["ZeRO"]),
    "everything": (
        ("dp=4", "micro_batch=1", "recompute=none"),
        ("pp=2", "tp=2", "micro_batch=4", "recompute=all", "schedule=gpipe", "zero=1"),
        ["mesh", "micro-batch", "recompute", "ZeRO", "schedule"],
    ),
    "stages a rank": (
        ("dp=4", "micro_batch=4"),
        ("pp=2", "dp=2", "micro_batch=2", "schedule=zbv"),
        ["mesh", "micro-batch", "schedule"],
    ),
    "split": (
        ("pp=2", "dp=2", "micro_batch=2", "schedule=zbv", "zero=1"),
        ("pp=2", "dp=2", "micro_batch=1", "schedule=interleaved"),
        ["micro-batch", "ZeRO", "schedule"],
    ),
    "cuts": (("pp=4", "cuts=1,2,3"), ("pp=4", "cuts=1,3,5"), ["cuts"]),
    "order": (
        ("cp=2", "dp=2", "cp_order=contiguous"),
        ("cp=2", "dp=2", "cp_order=mirrored"),
        ["placements"],
    ),
    "stored by shards": (
        ("pp=2", "tp=2", "cuts=2", "recompute=all"),
        ("pp=2", "tp=2", "cuts=3", "recompute=none", "shard_weights=1"),
        ["placements", "recompute", "cuts"],
    ),
}


def test_what_is_offloaded_is_a_difference_of_its_own() -> None:
    """What is kept and where are two decisions, to the host and back; the values are named."""
    stays = planned("recompute=none")
    away = replace(stays, pieces=tuple(replace(p, offloaded=p.saved[:1]) for p in stays.pieces))
    leaner = planned("recompute=all")

    def names(one: Plan, two: Plan) -> list[str]:
        return [d.name for d in differences(one, two, CLUSTER)]

    assert names(stays, away) == names(away, stays) == ["offload"]
    assert names(leaner, away) == ["recompute", "offload"]
    assert names(away, leaner) == ["offload", "recompute"]
    text = diff(away, leaner, (CLUSTER, CLUSTER))
    moved = next(name for piece in away.pieces for name in piece.offloaded)
    (first, second) = re.findall(r"  in host memory, \w+ +(.+)", text)
    assert moved in first and second == "nothing"


def test_plans_of_two_clusters_of_as_many_devices_have_the_clusters_worth() -> None:
    first, second = planned("dp=4", "zero=0"), planned("dp=4", "zero=3")
    slow = parse_cluster("a100:4")
    found = list(compared(first, second, (CLUSTER, slow)))
    assert [d.name for d in found] == ["cluster", "ZeRO"]
    assert found[0].prediction is not None and found[1].prediction is not None
    assert found[0].prediction.step_us == predict(first, slow).step_us
    assert found[1].prediction.step_us == predict(second, slow).step_us
    text = diff(first, second, (CLUSTER, slow))
    assert " on a100:4 (" in text and re.search(r"cluster +h200:4 -> a100:4 +\+", text)


def test_plans_of_other_numbers_of_devices_compare_by_the_device() -> None:
    two = parse_cluster("h200:2")
    second = make_plan(
        traced("tiny-llama"), two, seq=64, global_batch=16, pins=parse_pins(["dp=2"])
    )
    text = diff(planned("dp=4"), second, (CLUSTER, two))
    assert "h200:4 -> h200:2\n" in text and "dp=4 tp=1 -> pp=1 dp=2" in text
    rates = re.findall(r"tokens/s(?: a device)? +([\d,]+) +([\d,]+)", text)
    whole, each = [[int(x.replace(",", "")) for x in row] for row in rates]
    assert each == pytest.approx([whole[0] / 4, whole[1] / 2], abs=1)


@pytest.mark.parametrize("name", PAIRS)
def test_worths_add_up_from_the_first_plan_to_the_second(name: str) -> None:
    one, two, names = PAIRS[name]
    first, second = planned(*one), planned(*two)
    found = list(differences(first, second, CLUSTER))
    assert [d.name for d in found] == names
    assert found[-1].prediction.step_us == predict(second, CLUSTER).step_us
    assert found[-1].prediction.peak_bytes == predict(second, CLUSTER).peak_bytes
    text = diff(first, second, (CLUSTER, CLUSTER))
    worths = [float(x) for x in re.findall(r"  ([+-][0-9.]+)  ", text)]
    whole = (predict(second, CLUSTER).step_us - predict(first, CLUSTER).step_us) / 1e3
    assert sum(worths) == pytest.approx(whole, abs=0.05 * len(names) + 0.01)


KINDS = (
    ("pp=1", "micro_batch=4"),
    ("pp=2", "dp=2", "micro_batch=2", "schedule=interleaved", "chunks=3"),
    ("pp=2", "micro_batch=1", "schedule=interleaved"),
    ("pp=2", "tp=2", "micro_batch=16", "schedule=zbv"),
    ("pp=4", "schedule=zb-h1", "micro_batch=1"),
    ("pp=2", "tp=2", "schedule=gpipe"),
)


def test_any_plan_differs_from_any_other() -> None:
    """Whatever schedule the other has: on the way it may have to come with the mesh."""
    plans = [planned(*pins) for pins in KINDS]
    for one, two in permutations(plans, 2):
        last = list(differences(one, two, CLUSTER))[-1].prediction
        assert last.step_us == predict(two, CLUSTER).step_us


def test_equal_plans_differ_in_nothing() -> None:
    assert "decide the same" in diff(planned("dp=4"), planned("dp=4"), (CLUSTER, CLUSTER))


def test_plans_of_other_batches_are_refused_with_both_numbers() -> None:
    other = make_plan(
        traced("tiny-llama"), CLUSTER, seq=64, global_batch=8, pins=parse_pins(["dp=4"])
    )
    with pytest.raises(PlanError, match="global batch: 16 and 8"):
        diff(planned("dp=4"), other, (CLUSTER, CLUSTER))


def test_a_segments_ops_add_up_to_its_functions() -> None:
    plan = planned("dp=2", "pp=2", "zero=2")  # not recorded: the host issues each function
    work = next(u.work for u in step_model(plan, CLUSTER).stages[0] if "ffn" in u.name)
    text = explain_segment(plan, "ffn", CLUSTER)
    rows = re.findall(r"^    \S.{41} +([0-9.,]+) ", text, re.MULTILINE)
    total = sum(float(row.replace(",", "")) for row in rows)
    phases = (work.forward, work.backward)
    device_us = sum(phase.device_us for phase in phases)
    assert total == pytest.approx(device_us, abs=0.05 * len(rows))
    assert all(phase.us == CLUSTER.device.call_us > phase.device_us for phase in phases)
    waits = [f"{phase.us - phase.device_us:,.0f} us" for phase in phases]
    assert f"{waits[0]} in forward, {waits[1]} in backward" in text


def test_commands_explain_and_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = str(tmp_path / "one.txt"), str(tmp_path / "two.txt")
    sizes = ["plan", "tiny-llama", "--cluster", "h200:4", "--seq", "64", "--global-batch", "16"]
    assert main([*sizes, "--pin", "tp=1", "-o", one]) == 0
    assert main([*sizes, "--pin", "tp=2", "-o", two]) == 0
    capsys.readouterr()
    assert main(["diff", one, two]) == 0
    assert "mesh" in capsys.readouterr().out
    assert main(["explain", one, "--why-not", "tp=2"]) == 0
    said = capsys.readouterr().out
    assert "the best plan with tp=2" in said
    assert re.search(r"mesh +pp=\d dp=\d tp=1 -> pp=\d dp=\d tp=2", said), said
    assert main(["explain", one, "--segment", "layers.0.ffn"]) == 0
    assert "mw.linear" in capsys.readouterr().out
    assert main(["explain", one, "--segment", "fnn"]) == 2
    assert "near: ffn" in capsys.readouterr().err
