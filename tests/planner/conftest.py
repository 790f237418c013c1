"""Captures that planner tests share; and a longest path."""

from collections.abc import Callable, Sequence

import networkx as nx
import pytest

from meshwright import trace
from meshwright.ir.traced import Traced
from meshwright.planner.pipeline.schedules import make_schedule, stage_ranks


@pytest.fixture(scope="session")
def tiny() -> Traced:
    """The smallest preset: 4 layers, dim 128, 8 heads over 4 key/value heads."""
    return trace("tiny", dtype="bf16")


@pytest.fixture(scope="session")
def llama() -> Traced:
    """A Llama of 8 billion parameters; nothing is allocated."""
    return trace("llama-7b", dtype="bf16")


@pytest.fixture(scope="session")
def tied() -> Traced:
    """Embedding and head share one table; biases on q, k and v."""
    return trace("tiny-qwen2", dtype="bf16")


@pytest.fixture(scope="session")
def longest_path() -> Callable[..., float]:
    """(schedule, times of each stage, micro-batches, send_us, chunks) -> makespan."""
    return _longest_path


def _longest_path(
    name: str, stages: Sequence[tuple[float, ...]], m: int, send_us: float, chunks: int = 1
) -> float:
    """Makespan over the graph of actions: order on a rank, and one transfer between ranks.

    stages: (forward, backward) of each, or (forward, input gradient, weight gradient).
    """
    schedule = make_schedule(name, len(stages) // chunks, m, chunks)
    ranks = stage_ranks(name, len(stages) // chunks, chunks)
    ends = nx.DiGraph()  # edges into a node weigh what the node takes, and the way to it
    split = any(a.kind == "I" for a in schedule[0])
    back = "I" if split else "B"

    def takes(node: tuple[str, int, int]) -> float:
        kind, stage, _ = node
        return stages[stage]["FBW".index("B" if kind == "I" else kind)]

    def edge(a: tuple[str, int, int], b: tuple[str, int, int], way: float = 0.0) -> None:
        ends.add_edge(a, b, weight=takes(b) + way)

    for actions in schedule:
        order = [(a.kind, a.stage, a.microbatch) for a in actions if a.kind in "FBIW"]
        ends.add_edge("start", order[0], weight=takes(order[0]))
        for a, b in zip(order, order[1:], strict=False):
            edge(a, b)
    for stage, (here, there) in enumerate(zip(ranks, ranks[1:], strict=False)):
        way = send_us if here != there else 0.0
        for i in range(m):
            edge(("F", stage, i), ("F", stage + 1, i), way)
            edge((back, stage + 1, i), (back, stage, i), way)
    return nx.dag_longest_path_length(ends)
