"""What definitions say of implementations is what the kernels of the runtime choose."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from meshwright.ir.dtypes import FLOATS, TORCH_NAMES
from meshwright.ir.graph import Graph
from meshwright.ir.ops.definition import OpDef
from meshwright.ir.ops.implementation import DEVICES
from meshwright.ir.ops.questions import implementation
from meshwright.ir.ops.registry import DEFINITIONS
from meshwright.ir.text.graph_text import parse_graph
from meshwright.runtime.engine import kernels
from meshwright.runtime.engine.kernels import attention as attention_kernel
from meshwright.runtime.engine.kernels.attention import backend_of

WITH_KERNEL = [d for d in DEFINITIONS.values() if d.call.startswith("kernels.")]
CHOOSING = [d for d in WITH_KERNEL if len(d.implementations) > 1]
HEADS = (8, 12, 64, 128, 136, 264)
OPTIONS = tuple(product((True, False), (0, 4, 8, 16), (0.0, 30.0)))  # causal, window, softcap


@pytest.mark.parametrize("made", WITH_KERNEL, ids=lambda made: made.name)
def test_an_op_is_computed_on_every_device_in_every_dtype(made: OpDef) -> None:
    assert made.implementations
    *_, last = made.implementations
    assert (last.devices, last.dtypes) == (DEVICES, FLOATS)
    assert last.takes(parse_graph(_text("f32", 8, 8, True, 0, 0.0)).ops[0], "f64", [], "cpu")


def test_only_the_kernels_that_choose_have_several() -> None:
    assert {d.name for d in CHOOSING} == {"mw.attention", "mw.attention_backward"}
    assert kernels.attention.__globals__["backend_of"] is backend_of
    others = [d for d in WITH_KERNEL if d not in CHOOSING]
    for made in others:
        kernel = getattr(kernels, made.call.removeprefix("kernels."))
        assert kernel.__module__ != attention_kernel.__module__
        assert [way.name for way in made.implementations] == ["torch"]


@pytest.mark.parametrize("device", DEVICES)
def test_the_choice_is_the_kernel_s(device: str) -> None:
    found = set()
    for dtype, head, positions, options in product(FLOATS, HEADS, (1, 8), OPTIONS):
        graph = parse_graph(_text(dtype, positions, head, *options))
        q = SimpleNamespace(
            shape=(2, 4, positions, head),
            dtype=getattr(torch, TORCH_NAMES[dtype]),
            is_cuda=device == "cuda",
        )
        chosen = backend_of(q, *options)  # type: ignore[arg-type]
        assert _names(graph, device) == [chosen, chosen], (dtype, head, positions, options)
        found.add(chosen)
    (made, _) = CHOOSING
    assert found == {way.name for way in made.implementations if device in way.devices}


def _names(graph: Graph, device: str) -> list[str]:
    ways = [implementation(op, graph, {"B": 2, "S": 8}, device) for op in graph.ops]
    return [way.name for way in ways if way is not None]


def _text(dtype: str, positions: int, head: int, causal: bool, window: int, softcap: float) -> str:
    q, lse = f"{dtype}[B, 4, {positions}, {head}]", f"f32[B, 4, {positions}]"
    attrs = f"scale=1.0, causal={causal}, window={window}, softcap={softcap}"
    return f"""graph attention
%q : {q} = input activation "q"
%k : {q} = input context "k"
%v : {q} = input context "v"
%do : {q} = input grad "do"
%o : {q}; %lse : {lse} = mw.attention(%q, %k, %v, {attrs})
%dq : {q}; %dk : {q}; %dv : {q} = mw.attention_backward(%do, %q, %k, %v, %o, %lse, {attrs})
return %o, %dq
"""
