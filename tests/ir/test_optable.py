"""The op table covers every op of every family, and agrees with kernels and executor."""

import pytest
import torch
from families import OURS, STOCK, traced

from meshwright.codegen import ops as emission
from meshwright.ir.graph import Graph
from meshwright.ir.ops.table import ADDING, PASSED, SEMANTIC, rule_of
from meshwright.ir.schedule import KINDS
from meshwright.runtime import executor, kernels


def _graphs(name: str) -> list[Graph]:
    return [*traced(name).joints.values(), traced(name).segmented.context]


@pytest.mark.parametrize("name", OURS + STOCK)
def test_every_op_has_a_factor_rule_and_a_text_of_its_own(name: str) -> None:
    graphs = _graphs(name)
    found = [(op, graph) for graph in graphs for op in graph.ops]
    assert len(found) > 50, f"{name} has {len(found)} ops"
    ruleless = sorted({op.target for op, graph in found if rule_of(op, graph) is None})
    generic = sorted({op.target for op, _ in found} - set(emission._TABLE))
    assert not ruleless, f"{name}: no factor rule for {ruleless}"
    assert not generic, f"{name}: no emission for {generic}"
    assert traced(name).warnings == ()


@pytest.mark.parametrize("name", OURS + STOCK)
def test_rules_name_a_factor_of_the_right_size_for_every_dim(name: str) -> None:
    for graph in _graphs(name):
        for op in graph.ops:
            rule = rule_of(op, graph)
            assert rule is not None
            values = [graph.values[n] for n in op.inputs if n]
            for value, dims in [
                *zip(values, rule.inputs, strict=True),
                *zip(op.outputs, rule.outputs, strict=True),
            ]:
                assert len(dims) == len(value.shape), (op, value)
                for size, factors in zip(value.shape, dims, strict=True):
                    total = 1
                    for factor in factors:
                        total = total * rule.sizes[factor]
                    assert not factors or total == size, (op, value.name, factors)


def test_semantic_ops_are_the_kernels_and_the_declared_ones() -> None:
    names = torch._C._dispatch_get_all_op_names()
    declared = {n.removeprefix("meshwright::") for n in names if n.startswith("meshwright::")}
    adding = {f"add_{target.removeprefix('mw.')}" for target in ADDING}
    keeping = {f"{target.removeprefix('mw.')}_keeping" for target in PASSED}
    assert set(SEMANTIC) | adding | keeping == set(kernels.__all__)
    assert set(SEMANTIC) == declared
    assert all(callable(getattr(kernels, name)) for name in kernels.__all__)


def test_the_executor_knows_the_actions_of_the_ir() -> None:
    assert executor.KINDS == KINDS
