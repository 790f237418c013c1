"""docs/architecture.md shows real text: every excerpt is found in what the rooms make today."""

import re
from functools import cache
from pathlib import Path

import pytest

import meshwright
from meshwright.codegen.schedule import schedule_source
from meshwright.codegen.stage import stage_source
from meshwright.ir.text.graph_text import format_graph
from meshwright.ir.text.plan_text import format_plan
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
PINS = ["dp=2", "tp=2", "zero=3", "shard_weights=1", "micro_batch=2", "recompute=cheap"]


@cache
def hops() -> dict[str, str]:
    traced = meshwright.trace("tiny-llama")
    pins = parse_pins([*PINS, "schedule=1f1b"])
    plan = make_plan(traced, parse_cluster("cpu:4"), seq=64, global_batch=8, pins=pins)
    return {
        "graph": format_graph(traced.graph),
        "segments": "\n".join(i.segment for i in traced.segmented.instances),
        "joint": format_graph(traced.joints["ffn"]),
        "plan": format_plan(plan),
        "stage": stage_source(plan, 0),
        "schedule": schedule_source(plan),
    }


def excerpts() -> list[tuple[str, str]]:
    return re.findall(r"<!-- hop: (\w+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_has_an_excerpt_of_every_hop() -> None:
    assert [name for name, _ in excerpts()] == list(hops())


@pytest.mark.parametrize(("name", "excerpt"), excerpts(), ids=[n for n, _ in excerpts()])
def test_excerpt_is_found_in_order(name: str, excerpt: str) -> None:
    rest = hops()[name]
    for run in excerpt.split("...\n"):
        assert run in rest + "\n", f"{name}: not in today's text, or out of order:\n{run}"
        rest = rest.partition(run)[2]
