"""The emitted text of each definition computes what eager torch does, in float64."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from op_cases import COMPOSITES, SEMANTIC_COMPOSITES, OpCase, cases
from torch import Tensor

from meshwright.codegen.emitters import op_text
from meshwright.codegen.local import Locals
from meshwright.ir.capture.composites import EXPANSIONS
from meshwright.ir.capture.fx import short_dtype
from meshwright.ir.capture.joint import _call, resolve
from meshwright.ir.graph import Graph, Input, Op, Value
from meshwright.ir.ops.questions import rule_of
from meshwright.ir.ops.registry import DEFINITIONS
from meshwright.ir.placement import Mesh
from meshwright.runtime.engine import kernels

CASES = cases()


def test_each_definition_has_a_case() -> None:
    """A collective needs ranks: tests/runtime/test_collectives.py."""
    apart = ("composite", "collective", "call")
    assert set(CASES) == {name for name, made in DEFINITIONS.items() if made.kind not in apart}
    composites = {name for name, made in DEFINITIONS.items() if made.kind == "composite"}
    assert set(COMPOSITES) | SEMANTIC_COMPOSITES == composites


def _value(name: str, tensor: Tensor) -> Value:
    return Value(name, short_dtype(tensor.dtype), tuple(tensor.shape))


def _graph(name: str, case: OpCase) -> tuple[Graph, tuple[Tensor, ...]]:
    """A graph of the one op, and what it must compute."""
    inputs = [Input(_value(f"x{k}", x), "data", f"x{k}") for k, x in enumerate(case.operands)]
    names, attrs = tuple(i.value.name for i in inputs), tuple(case.attrs.items())
    if case.expected is None:
        made: Any = _call(Op(name, names, (), attrs), case.operands, {})
    else:
        made = case.expected(*case.operands)
    expected = made if isinstance(made, tuple) else (made,)
    outputs = tuple(_value(f"y{k}", y) for k, y in enumerate(expected))
    op = Op(name, names, outputs, attrs)
    return Graph("one", tuple(inputs), (op,), tuple(v.name for v in outputs)), expected


def _computed(graph: Graph, operands: list[Tensor]) -> tuple[Tensor, ...]:
    plan: Any = SimpleNamespace(mesh=Mesh((("tp", 1),)), sizes={"B": 1, "S": 1})
    text = op_text(graph.ops[0], Locals(graph, {}, plan))
    scope = {"torch": torch, "F": F, "kernels": kernels, "DEVICE": torch.device("cpu")}
    scope |= {f"x{k}": x for k, x in enumerate(operands)}
    made = eval(text, scope)
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("name", CASES)
def test_emitted_text_equals_eager(name: str) -> None:
    graph, expected = _graph(name, CASES[name])
    found = _computed(graph, CASES[name].operands)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_factors_fit_the_shapes(name: str) -> None:
    graph, _ = _graph(name, CASES[name])
    (op,) = graph.ops
    rule = rule_of(op, graph)
    assert rule is not None
    sides = [(i.value, dims) for i, dims in zip(graph.inputs, rule.inputs, strict=True)]
    sides += list(zip(op.outputs, rule.outputs, strict=True))
    for value, dims in sides:
        for size, factors in zip(value.shape, dims, strict=True):
            total = 1
            for factor in factors:
                total = total * rule.sizes[factor]
            assert not factors or total == size, (name, value.name, factors)


@pytest.mark.parametrize("name", COMPOSITES)
def test_an_expansion_equals_the_composite(name: str) -> None:
    case = COMPOSITES[name]
    found = EXPANSIONS[name](*case.operands, **case.attrs)
    x, *rest = case.operands
    spread = dict(zip(("weight", "bias"), rest, strict=False))
    expected = resolve(name)(x, **case.attrs, **spread)
    torch.testing.assert_close(list(found), list(expected), rtol=1e-11, atol=1e-11)
