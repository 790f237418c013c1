"""Every text parses back to what it was printed from, and prints again to the same bytes."""

from dataclasses import replace

import pytest
import torch
from families import OURS, STOCK, planned, traced
from sampling import mostly_long

from meshwright.ir.capture.constants import encode
from meshwright.ir.errors import MeshwrightError, ParseError
from meshwright.ir.graph import Graph
from meshwright.ir.placement import Placement, Shard, format_placement, parse_placement
from meshwright.ir.plan import Plan
from meshwright.ir.schedule import format_schedule, parse_schedule
from meshwright.ir.sizes import B, parse_size
from meshwright.ir.text.graph_text import format_graph, parse_graph
from meshwright.ir.text.plan_text import (
    format_constant,
    format_plan,
    parse_constant,
    parse_plan,
)
from meshwright.planner.pipeline.schedules import GENERATORS, make_schedule


def _graphs(name: str) -> list[Graph]:
    model = traced(name)
    pieces = [s.graph for s in model.segmented.segments]
    return [model.graph, model.segmented.context, *pieces, *model.joints.values()]


@pytest.mark.parametrize("name", mostly_long(OURS + STOCK, "tiny-llama", "tiny-gpt2", "hf-gemma3"))
def test_graphs_parse_back_byte_equal(name: str) -> None:
    for graph in _graphs(name):
        text = format_graph(graph)
        assert parse_graph(text) == graph, graph.name
        assert format_graph(parse_graph(text)) == text, graph.name


PLANS = {
    "single": ("tiny-llama", "cpu:1"),
    "dp and zero 3": ("tiny-qwen2", "cpu:2", "dp=2", "zero=3", "recompute=all"),
    "tp, weights sharded": ("tiny-llama", "cpu:2", "tp=2", "shard_weights=1"),
    "pp, tied homes": ("tiny-qwen2", "cpu:2", "pp=2", "schedule=gpipe", "recompute=none"),
    "window, soft-cap": ("tiny-gemma2", "cpu:2", "dp=2", "zero=1", "micro_batch=1"),
    "learned positions": ("tiny-gpt2", "cpu:4", "pp=2", "dp=2", "zero=2"),
    "two stages a rank": ("tiny-qwen2", "cpu:2", "pp=2", "schedule=zbv", "micro_batch=1"),
    "context, mirrored": ("tiny-llama", "cpu:4", "cp=2", "tp=2", "cp_order=mirrored"),
    "context, window": ("hf-mistral", "cpu:2", "cp=2"),
    "stock": ("hf-qwen3", "cpu:2", "pp=2", "cuts=2"),
}


@pytest.mark.parametrize("case", PLANS)
def test_plans_parse_back_byte_equal(case: str) -> None:
    plan = planned(*PLANS[case])
    text = format_plan(plan)
    assert parse_plan(text) == plan
    assert format_plan(parse_plan(text)) == text


def test_a_window_over_shards_prints_its_halo() -> None:
    text = format_plan(planned(*PLANS["context, window"]))
    assert "{cp+3}" in text and "{cp+3sum}" in text


def test_shards_parse_back() -> None:
    dims = (
        (Shard("dp"), Shard("cp", 2, mirrored=True)),
        (Shard("cp", B, mirrored=True),),
        (Shard("cp", halo=3),),
        (Shard("cp", 4, halo=12, summed=True),),
        (),
    )
    placement = Placement(dims, (("tp", "sum"),))
    text = "[{dp 2:cp~}, {B:cp~}, {cp+3}, {4:cp+12sum}, {}] partial {tp:sum}"
    assert format_placement(placement) == text and parse_placement(text) == placement


@pytest.mark.parametrize("text", ["[{cp~~}]", "[{~}]", "[{2:}]", "[{cp+0}]", "[{cp+sum}]"])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="not a shard"):
        parse_placement(text)


def test_costs_and_notes_parse_back() -> None:
    plan = replace(planned("tiny-llama", "cpu:1"), costs=(("step_us", 1.5e-7), ("peak_bytes", 3.0)))
    plan = replace(plan, coverage=("cumsum has no factor rule (a.py:3)", "a: b = [c]"))
    assert parse_plan(format_plan(plan)) == plan


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (3, 6), (4, 12)])
def test_schedules_parse_back_byte_equal(name: str, ranks: int, microbatches: int) -> None:
    schedule = make_schedule(name, ranks, microbatches)
    text = format_schedule(schedule)
    assert parse_schedule(text) == schedule
    assert format_schedule(parse_schedule(text)) == text


# Damage


def _plan() -> Plan:
    return planned("tiny-llama", "cpu:1")


@pytest.mark.parametrize("first", ["meshwright plan v1", "meshwright graph v1", ""])
def test_another_version_of_a_plan_is_refused(first: str) -> None:
    text = format_plan(_plan()).replace("meshwright plan v2", first, 1)
    with pytest.raises(ParseError, match="'meshwright plan v2'"):
        parse_plan(text)


def test_another_version_of_a_graph_is_refused() -> None:
    text = format_graph(traced("tiny-llama").graph).replace("graph v1", "graph v2", 1)
    with pytest.raises(ParseError, match="line 1: expected .* found 'meshwright graph v2'"):
        parse_graph(text)


@pytest.mark.parametrize("damage", ["?", "%a : f32[", "%a : f32[B, Q] = neg(%b)", "%a = (", ")"])
def test_a_damaged_line_of_a_graph_is_named(damage: str) -> None:
    lines = format_graph(traced("tiny-llama").graph).splitlines()
    lines[40] = damage
    with pytest.raises(ParseError, match="line 41") as caught:
        parse_graph("\n".join(lines))
    assert repr(damage) in str(caught.value)


def test_a_lost_line_of_a_graph_is_noticed() -> None:
    graph = traced("tiny-llama").graph
    lines = format_graph(graph).splitlines()
    lost = next(k for k, line in enumerate(lines) if " = mw.attention(" in line)
    with pytest.raises(MeshwrightError, match="is not defined before"):
        parse_graph("\n".join(lines[:lost] + lines[lost + 1 :]))


DAMAGES = {  # what stands there: what it becomes, and what the message says
    "seq: 8": ("seq: eight", "seq: 'eight' is no int"),
    "flops_per_token: ": ("flops_per_token: many ", "flops_per_token: 'many "),
    "mesh: pp=1": ("mesh: pp=one", "'pp=one'"),
    "rank 0: 0F0": ("rank 0: 0Q0", "not an action: '0Q0'"),
    "stage_ranks: 0": ("stage_ranks: none", "stage_ranks: 'none'"),
    " stage=0 piece=": (" stage=zero piece=", "stage=zero"),
    " init normal(": (" begin normal(", " begin normal("),
    "embed : f32[": ("embed ; f32[", "embed ; f32["),
    " at 0": (" at zero", " at zero"),
    "\n[schedule]\n": ("\n[times]\n", "lacks 'schedule'"),
    "\n%x : f32[B": ("\n%x : f32(B", "%x : f32(B"),
    " @ [{}, {}, {}] = input activation": (" = input activation", "%x has no placement"),
}


@pytest.mark.parametrize("before", DAMAGES, ids=lambda text: text.strip())
def test_damage_to_a_plan_is_a_parse_error_with_the_place(before: str) -> None:
    text, (after, said) = format_plan(_plan()), DAMAGES[before]
    assert before in text, "the plan's text has changed; choose another damage"
    with pytest.raises(ParseError) as caught:
        parse_plan(text.replace(before, after, 1))
    assert said in str(caught.value)


def test_a_size_is_arithmetic_and_nothing_is_run() -> None:
    with pytest.raises(ParseError, match="not a size over B and S"):
        parse_size("__import__('os').getpid()")


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 8, 40])
def test_a_constant_that_is_cut_off_is_refused(cut: int) -> None:
    constant = encode("0123456789abcdef", torch.arange(20, dtype=torch.int32))
    line = format_constant(constant).strip()
    assert parse_constant(line) == constant
    with pytest.raises(ParseError, match="the plan is cut off or damaged; plan again"):
        parse_constant(line[:-cut])
