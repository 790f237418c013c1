"""The registry covers every op of every family, and agrees with emitters, kernels and capture."""

import pytest
import torch
from families import OURS, STOCK, traced
from sampling import mostly_long

from meshwright.codegen.emitters import EMITTERS
from meshwright.codegen.emitters.call import torch_call
from meshwright.ir.capture.composites import EXPANSIONS
from meshwright.ir.graph import Graph
from meshwright.ir.ops import indexing
from meshwright.ir.ops.definition import OpDef, no_flops
from meshwright.ir.ops.loss import LEAST_TOKENS, LOGITS_ELEMENTS
from meshwright.ir.ops.questions import rule_of
from meshwright.ir.ops.registry import DEFINITIONS
from meshwright.ir.schedule import KINDS
from meshwright.runtime.engine import executor, kernels
from meshwright.runtime.engine.kernels import cross_entropy
from meshwright.runtime.engine.kernels.cross_entropy import CHUNK_ELEMENTS
from meshwright.runtime.engine.kernels.embedding import FEW_IDS


def _graphs(name: str) -> list[Graph]:
    return [*traced(name).joints.values(), traced(name).segmented.context]


@pytest.mark.parametrize("name", mostly_long(OURS + STOCK, *OURS, "hf-gemma3"))
def test_every_op_has_a_factor_rule_and_a_text_of_its_own(name: str) -> None:
    graphs = _graphs(name)
    found = [(op, graph) for graph in graphs for op in graph.ops]
    assert len(found) > 50, f"{name} has {len(found)} ops"
    ruleless = sorted({op.target for op, graph in found if rule_of(op, graph) is None})
    generic = sorted(
        {op.target for op, _ in found if EMITTERS.get(op.target) in (None, torch_call)}
    )
    assert not ruleless, f"{name}: no factor rule for {ruleless}"
    assert not generic, f"{name}: no emission for {generic}"
    assert traced(name).warnings == ()


@pytest.mark.parametrize("name", mostly_long(OURS + STOCK, *OURS, "hf-gemma3"))
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
    made = [d for d in DEFINITIONS.values() if d.call.startswith("kernels.")]
    semantic = {_kernel(d) for d in made}
    adding = {f"add_{_kernel(d)}" for d in made if d.adds is not None}
    keeping = {f"{_kernel(d)}_keeping" for d in made if d.passing_output is not None}
    assert semantic | adding | keeping == set(kernels.__all__)
    expanded = {n for n in declared if DEFINITIONS[f"mw.{n}"].kind == "composite"}
    assert semantic == declared - expanded == {d.name.removeprefix("mw.") for d in made}
    assert all(callable(getattr(kernels, name)) for name in kernels.__all__)


def _kernel(made: OpDef) -> str:
    return made.call.removeprefix("kernels.")


def test_every_definition_has_an_emitter_and_no_emitter_is_left_over() -> None:
    assert set(EMITTERS) == {name for name, made in DEFINITIONS.items() if made.registered}


def test_every_definition_that_reaches_a_plan_has_factors() -> None:
    """Composites are gone by then, and a collective's placements are in its attributes."""
    without = {name for name, made in DEFINITIONS.items() if made.factors is None}
    rest = ("composite", "collective", "call")
    assert without == {name for name, made in DEFINITIONS.items() if made.kind in rest}


def test_the_ops_of_the_matrix_units_and_recurrences_alone_have_flops() -> None:
    counted = {name for name, made in DEFINITIONS.items() if made.flops is not no_flops}
    units = ("matmul", "attention", "loss")
    expected = {name for name, made in DEFINITIONS.items() if made.kind in units}
    assert counted == expected | {"mw.recurrence", "mw.recurrence_backward"}


def test_a_matmul_sums_the_rows_of_as_few_ids_as_the_kernel_says() -> None:
    assert indexing.FEW_IDS == FEW_IDS


def test_the_workspace_of_the_loss_is_a_chunk_of_its_kernel() -> None:
    assert LOGITS_ELEMENTS == CHUNK_ELEMENTS
    assert {"cuda": LEAST_TOKENS} == cross_entropy.LEAST_TOKENS
    assert {n for n, d in DEFINITIONS.items() if d.workspace and d.kind == "loss"} == {
        "mw.linear_cross_entropy",
        "mw.linear_cross_entropy_backward",
    }


def test_composites_are_those_that_capture_expands() -> None:
    assert {n for n, made in DEFINITIONS.items() if made.kind == "composite"} == set(EXPANSIONS)


def test_the_executor_knows_the_actions_of_the_ir() -> None:
    assert executor.KINDS == KINDS
