"""Names of emitted programs: gradients say whose they are, nothing hides a builtin or an import."""

import ast
import builtins
import re
from collections.abc import Iterator

import pytest
from golden.test_golden import CASES, FOLDER
from sampling import mostly_long

import meshwright
from meshwright.codegen.local import identifier
from meshwright.codegen.program import emit
from meshwright.ir.phases import phases_of
from meshwright.ir.plan import Plan
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins

MODELS = ["tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3", "tiny-gpt2"]
STAGES = sorted(FOLDER.glob("*/stage_*.py"))


def _plan(model: str) -> Plan:
    traced = meshwright.trace(model, dtype="f32")
    pins = parse_pins(["tp=2", "shard_weights=1"])
    return make_plan(traced, parse_cluster("cpu:2"), seq=8, global_batch=4, pins=pins)


def _assigned(tree: ast.AST) -> Iterator[str]:
    """Names that functions of a module define, their arguments included."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            yield from (a.arg for a in function.args.args)
            yield from (n.id for n in ast.walk(function) if isinstance(n, ast.Name) and _sets(n))


def _sets(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _global(tree: ast.Module) -> set[str]:
    """Names that a module imports or defines."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {a.asname or a.name for a in node.names}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return found


def _check_nothing_hidden(text: str) -> None:
    tree = ast.parse(text)
    hidden = set(_assigned(tree)) & (set(dir(builtins)) | _global(tree))
    assert not hidden, sorted(hidden)


def _check_gradients(plan: Plan) -> None:
    """What backward makes is a gradient, a step towards one, or computed again."""
    for piece in plan.pieces:
        phases = phases_of(piece.graph, piece.saved)
        forward = {v.name for op in phases.forward.ops for v in op.outputs}
        for op in phases.backward.ops:
            again = op.output.name in phases.recomputed
            assert again or op.source, op
            assert again or all(v.name.startswith("d_") for v in op.outputs), op
            assert not again or all(v.name in forward for v in op.outputs), op


@pytest.mark.parametrize("path", STAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_golden_name_hides_a_builtin_or_an_import(path) -> None:  # type: ignore[no-untyped-def]
    _check_nothing_hidden(path.read_text())


@pytest.mark.parametrize("path", STAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_gradient_names_a_value_of_the_forward(path) -> None:  # type: ignore[no-untyped-def]
    """`d_v`, `d_v_from_u` and `d_v_mul` all begin with the name of a forward value or parameter."""
    text = path.read_text()
    names = set(re.findall(r"\b(?!d_)[a-z]\w*", text))
    for gradient in set(re.findall(r"\bd_(\w+)", text)):
        words = gradient.split("_")
        begins = ["_".join(words[:n]) for n in range(1, len(words) + 1)]
        assert names & set(begins), gradient


@pytest.mark.parametrize("model", mostly_long(MODELS, "tiny-gemma3", "tiny-gpt2"))
def test_every_family_names_its_gradients(model: str) -> None:
    plan = _plan(model)
    _check_gradients(plan)
    for name, text in emit(plan).items():
        if name.startswith("stage_"):
            _check_nothing_hidden(text)


def test_the_golden_cases_are_all_read() -> None:
    assert {path.parent.name for path in STAGES} == set(CASES)


@pytest.mark.parametrize("name", ["sum", "max", "input", "slice", "torch", "mesh", "PIECES"])
def test_a_value_steps_aside(name: str) -> None:
    assert identifier(name) == f"{name}_"
