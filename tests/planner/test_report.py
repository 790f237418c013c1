"""The search's report: every part, short, and honest about what a number rests on."""

from dataclasses import replace

import pytest
from families import planned, traced

from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.report.coverage import coverage
from meshwright.planner.report.explain import explain_value, summary
from meshwright.planner.report.report import search_report
from meshwright.planner.search.pins import parse_pins
from meshwright.planner.search.search import search_plan
from meshwright.planner.simulate.simulator import Timeline
from meshwright.planner.units import counted

PARTS = ("us of one micro-batch by segment", "ranks", "memory at the peak", "runners-up",
         "coverage", "bound")  # fmt: skip
SAID = {
    "h200:4": (
        "assumed: matmul rates of NVIDIA H200 SXM in f32",
        "measured: memory bandwidth",
        "measured: link nvlink",
        "fell back: warning: mw.attention of attention is computed by reference on cuda, which "
        "holds all scores: 3.0 MiB at once, 6% of the step",
        "chosen: functions are issued as CUDA graphs, recorded once; none waits for the host",
    ),
    "rtx4090:4": (
        "data sheet: matmul rates",
        "assumed: large matmuls",
        "assumed: link pcie",
        "no curve",
    ),
    "cpu:4": (
        "assumed: matmul rates",
        "assumed: memory bandwidth",
        "assumed: bandwidth of shared",
        "chosen: mw.attention of attention is computed by cpu_flash on cpu",
    ),
}
NOT_SAID = {
    "rtx4090:4": "measured:",
    "cpu:4": "measured:",
}  # fmt: skip


def report_on(cluster: str, **read: int) -> str:
    """read: bytes that a probe found of the device."""
    given = parse_cluster(cluster)
    found = search_plan(
        traced("tiny-llama"),
        replace(given, device=replace(given.device, **read)),
        seq=64,
        global_batch=8,
        pins=parse_pins(["pp=1"]),
    )
    return search_report(*found)


def test_a_report_says_what_the_reserve_is_for_where_a_probe_has_read_it() -> None:
    text = report_on("h200:4", context_bytes=767 * 2**20, communicator_bytes=2**28)
    _, _, said = text.partition("beside it, 12.64 GiB that no plan may use\n")
    context, links, rest, *_ = said.splitlines()
    assert context.split() == ["CUDA", "context", "0.75", "GiB"]
    count, _, size, unit = links.split()
    assert (float(size), unit) == (pytest.approx(int(count) / 4), "GiB")
    left = 0.09 * 140.4 - 767 / 1024 - int(count) / 4
    assert float(rest.split()[-2]) == pytest.approx(left, abs=0.01)
    assert "that no plan may use" not in report_on("h200:4")


@pytest.mark.parametrize("cluster", SAID)
def test_a_report_has_every_part_and_says_what_was_assumed(cluster: str) -> None:
    text = report_on(cluster)
    assert all(any(line.startswith(part) for line in text.splitlines()) for part in PARTS)
    assert all(said in text for said in SAID[cluster]), text
    assert cluster not in NOT_SAID or NOT_SAID[cluster] not in text, text
    assert "The gap is to what a combination takes at the least" in text
    assert len(text.splitlines()) <= 200


def test_a_capture_that_is_trusted_is_no_fall_back() -> None:
    plan = planned("tiny-llama", "cpu:2")
    lines = coverage(replace(plan, coverage=("capture: trusted",)), parse_cluster("cpu:2"))
    assert lines[-2:] == ["  capture: trusted", "  fell back: nothing"]


@pytest.mark.parametrize("pins", [["pp=1"], ["pp=2", "schedule=zbv"]])
def test_what_a_rank_does_adds_up_to_the_step(pins: list[str]) -> None:
    cluster, given = parse_cluster("h200:4"), parse_pins(pins)
    plan, found, prediction = search_plan(
        traced("tiny-llama"), cluster, seq=64, global_batch=8, pins=given
    )
    lines = search_report(plan, found, prediction).splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("  rank  segments")) + 1
    for line in lines[first : first + len(plan.schedule)]:
        assert sum(map(float, line.split()[2:6])) == pytest.approx(
            prediction.step_us / 1e3, abs=0.21
        )


def test_one_of_a_kind_is_counted_as_one() -> None:
    pins = parse_pins(["dp=1", "micro_batch=8"])
    sizes = {"seq": 64, "global_batch": 8, "pins": pins}
    found = search_plan(traced("tiny-llama"), parse_cluster("cpu:1"), **sizes)
    assert ", 1 micro-batch of 8 rows, " in search_report(*found)
    assert " as 1 micro-batch of 8 on 1 data rank\n" in summary(found[0])
    assert [counted(n, "row") for n in (1, 2)] == ["1 row", "2 rows"]


def test_a_bubble_that_rounding_makes_is_none() -> None:
    """What is printed is 0.0 then, and never -0.0."""
    timeline = Timeline(0.3, (0.1 + 0.2,), (0.3,), (0.0,), ())
    assert f"{timeline.bubble_us(0):.1f}" == "0.0"


def test_values_are_explained_by_what_becomes_of_them() -> None:
    cluster, given = parse_cluster("h200:4"), parse_pins(["recompute=all", "pp=1", "tp=1"])
    plan, *_ = search_plan(traced("tiny-llama"), cluster, seq=64, global_batch=8, pins=given)
    for name, said in {
        "ffn_silu": "computed again in backward",
        "loss_logits": "in passing",
        "loss_lse": "computed again",
        "d_norm_mul_2": "a value of the backward",
        "lm_head_w": "given",
    }.items():
        assert said in explain_value(plan, name), name


@pytest.mark.long
def test_the_same_search_gives_the_same_bytes() -> None:
    assert report_on("h200:4") == report_on("h200:4")
