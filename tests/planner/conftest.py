"""Graphs that planner tests share: a Llama-shaped model, traced once."""

from dataclasses import dataclass

import pytest

from meshwright.ir.capture import capture
from meshwright.ir.graph import Graph
from meshwright.ir.joint import joint
from meshwright.ir.segment import Segmented, segment
from meshwright.models import load_model


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
