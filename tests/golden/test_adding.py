"""Where a parameter's gradient is added: by the matmul that makes it, by itself, or nowhere."""

import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from meshwright.codegen.program import emit
from meshwright.ir.capture.export import trace
from meshwright.ir.ops.questions import added_where_made
from meshwright.ir.text.graph_text import parse_graph
from meshwright.models import PRESETS
from meshwright.models.decoder import Decoder
from meshwright.models.ffn import FeedForward
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.runtime.engine import kernels

CONFIG = replace(
    PRESETS["tiny"], dim=16, layers=1, heads=4, kv_heads=2, head_dim=4, ffn=32, vocab=64
)


class Gated(FeedForward):
    """Its parameter `sign` has no gradient: the output depends on it by steps."""

    sign: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (self.sign >= 0).to(x.dtype)


def with_idle_parameter() -> Decoder:
    model = Decoder(CONFIG)
    ffn = model.layers[0].ffn
    ffn.__class__ = Gated
    ffn.sign = nn.Parameter(torch.ones(16))  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("pins", [("pp=1",), ("pp=2", "schedule=zb-h1", "micro_batch=1")], ids=str)
def test_each_gradient_is_added_once_and_an_idle_parameter_is_frozen(pins: tuple[str, ...]) -> None:
    traced = trace(with_idle_parameter, "idle", "f32", 64)
    cluster = parse_cluster(f"cpu:{pins[0][-1]}")
    plan = make_plan(traced, cluster, seq=8, global_batch=4, pins=parse_pins(list(pins)))
    files = emit(plan)
    text = "\n".join(t for name, t in files.items() if name.startswith("stage_"))
    called = set(re.findall(r"kernels\.(\w+)", text))
    assert {"add_linear_weight_grad", "add_linear_cross_entropy_backward"} <= called
    assert called <= set(kernels.__all__)
    added = re.findall(r"(grad_\w+)\.add_\(|kernels\.add_\w+\(\s*(grad_\w+),", text)
    counts = Counter(one or other for one, other in added)
    unpacked = set(re.findall(r"\bgrad_\w+", text))
    assert plan.frozen == ("layers.0.ffn.sign",)
    assert set(counts) == unpacked
    assert set(counts.values()) == {1}


def _graph(*ops: str, outputs: str) -> str:
    lines = (
        "graph g",
        '%x : f32[B, S, 8] = input activation "x"',
        '%w : f32[8, 8] = input param "w"',
        '%v : f32[8, 8] = input param "v"',
        '%dy : f32[B, S, 8] = input grad "dy"',
        "%y : f32[B, S, 8] = mw.linear(%x, %w)",
        "%dw : f32[8, 8] = mw.linear_weight_grad(%dy, %x)",
        *ops,
        f"return %y, %dy, {outputs}",
    )
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "adds"),
    [
        (_graph("%dv : f32[8, 8] = neg(%w)", outputs="%dw, %dv"), {"dw"}),
        (_graph("%dv : f32[8, 8] = neg(%dw)", outputs="%dw, %dv"), set()),  # read elsewhere
        (_graph(outputs="%dw, %dw"), set()),  # of two parameters
    ],
)
def test_a_matmul_adds_what_nothing_else_reads(text: str, adds: set[str]) -> None:
    graph = parse_graph(text)
    assert {n for n in graph.outputs[2:] if added_where_made(graph, n)} == adds
