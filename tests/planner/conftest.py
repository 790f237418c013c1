"""Graphs that planner tests share: a Llama-shaped model, traced once."""

from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import pytest

from meshwright.ir.capture import capture
from meshwright.ir.graph import Graph
from meshwright.ir.joint import joint
from meshwright.ir.segment import Segmented, segment
from meshwright.models import load_model
from meshwright.planner.schedules import make_schedule


@dataclass(frozen=True)
class Traced:
    segmented: Segmented
    joints: dict[str, Graph]


def trace(spec: str) -> Traced:
    source = load_model(spec)
    segmented = segment(capture(source.build, source.name, "bf16").graph)
    return Traced(segmented, {s.name: joint(s) for s in segmented.segments})


@pytest.fixture(scope="session")
def tiny() -> Traced:
    """The smallest preset: 4 layers, dim 128, 8 heads over 4 key/value heads."""
    return trace("tiny")


@pytest.fixture(scope="session")
def llama() -> Traced:
    """A Llama of 8 billion parameters; nothing is allocated."""
    return trace("llama-7b")


@pytest.fixture(scope="session")
def tied() -> Traced:
    """Embedding and head share one table; biases on q, k and v."""
    return trace("tiny-qwen2")


@pytest.fixture(scope="session")
def longest_path() -> Callable[..., float]:
    """(schedule, (forward, backward) of each stage, micro-batches, send_us) -> makespan."""
    return _longest_path


def _longest_path(name: str, stages: list[tuple[float, float]], m: int, send_us: float) -> float:
    """Makespan over the graph of actions: order on a stage, and one transfer between stages."""
    schedule = make_schedule(name, len(stages), m)
    graph = nx.DiGraph()
    for stage, actions in enumerate(schedule):
        compute = [a for a in actions if a.kind in "FB"]
        for a, b in zip(compute, compute[1:], strict=False):
            graph.add_edge((stage, str(a)), (stage, str(b)), weight=_cost(stages, stage, str(a)))
        end = (stage, str(compute[-1]))
        graph.add_edge(end, "end", weight=_cost(stages, *end))
        for i in range(m):
            if stage:
                start = (stage - 1, f"F{i}")
                graph.add_edge(start, (stage, f"F{i}"), weight=_cost(stages, *start) + send_us)
                start = (stage, f"B{i}")
                graph.add_edge(start, (stage - 1, f"B{i}"), weight=_cost(stages, *start) + send_us)
    return nx.dag_longest_path_length(graph)


def _cost(stages: list[tuple[float, float]], stage: int, action: str) -> float:
    return stages[stage][0 if action[0] == "F" else 1]
