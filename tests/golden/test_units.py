"""Local functions of a stage: which ops form one, which of them are shared, what they return."""

import ast
import inspect

import pytest
import torch
from golden.test_golden import CASES, FOLDER, _plan
from stream_models import VOCAB, ValueResidual

from meshwright.codegen.functions import Functions
from meshwright.codegen.lines import Lines
from meshwright.codegen.local import Locals
from meshwright.codegen.units import Unit, grouped, title
from meshwright.codegen.writer import Writer
from meshwright.ir.capture.export import trace
from meshwright.ir.graph import Graph
from meshwright.ir.text.graph_text import parse_graph

SCREEN = 50  # lines of a block's forward
LLAMAS = [name for name in CASES if name.startswith("llama")]


def _function(text: str, name: str) -> str:
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_source_segment(text, node) or ""
    return ""


def _unnamed(function: ast.FunctionDef) -> str:
    """What a function does, whatever it is called."""
    function.name = "f"
    return ast.dump(function)


@pytest.mark.parametrize("name", LLAMAS)
def test_a_llama_block_forward_fits_a_screen(name: str) -> None:
    stages = [path.read_text() for path in sorted((FOLDER / name).glob("stage_*.py"))]
    parts = [_function(t, f"{part}_forward") for part in ("attention", "ffn") for t in stages]
    assert sum(bool(part) for part in parts) == 2
    assert sum(len(part.splitlines()) for part in parts if part) <= SCREEN


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/stage_*.py")), ids=str)
def test_lines_are_no_wider_than_a_hundred_columns(path) -> None:  # type: ignore[no-untyped-def]
    assert [line for line in path.read_text().splitlines() if len(line) > 100] == []


@pytest.mark.parametrize("name", CASES)
def test_no_two_functions_of_a_stage_have_equal_text(name: str) -> None:
    for path in (FOLDER / name).glob("stage_*.py"):
        functions = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)]
        texts = [_unnamed(f) for f in functions]
        assert len(set(texts)) == len(texts)


def test_compiled_functions_are_inlined() -> None:
    """Dynamo takes a piece's forward whole, local functions included."""
    text = (FOLDER / "llama_dp2" / "stage_00.py").read_text()
    source = "import torch\n" + _function(text, "norm") + "\n"
    source += "def piece(x, w):\n    return norm(x, w) + norm(x, w)\n"
    space: dict = {}
    exec(source, space)
    graphs = []

    def backend(graph, inputs):  # type: ignore[no-untyped-def]
        graphs.append(graph)
        return graph.forward

    x, w = torch.randn(2, 3, 16), torch.randn(16)
    compiled = torch.compile(space["piece"], backend=backend, fullgraph=True)
    assert torch.equal(compiled(x, w), space["piece"](x, w))
    assert len(graphs) == 1 and "norm(" not in inspect.getsource(type(graphs[0]).forward)


GRAPH = """graph g
%x : f32[B, S, 8] = input activation "x"
%a_w : f32[8] = input param "a.w"
%b_w : f32[8] = input param "b.w"
%m : f32[8, 8] = input param "m"
%turn_t : f32[S, 8] = input context "turn.t"
%a_exp : f32[B, S, 8] = exp(%x)  # m.py:1
%a_tanh : f32[B, S, 8] = tanh(%a_exp)  # m.py:1
%a_neg : f32[B, S, 8] = neg(%a_tanh)  # m.py:2
%a_mul : f32[B, S, 8] = mul.Tensor(%a_neg, %a_w)  # m.py:2
%l : f32[B, S, 8] = mw.linear(%a_mul, %m)  # n.py:1
%b_exp : f32[B, S, 8] = exp(%l)  # m.py:1
%b_tanh : f32[B, S, 8] = tanh(%b_exp)  # m.py:1
%b_neg : f32[B, S, 8] = neg(%b_tanh)  # m.py:2
%b_mul : f32[B, S, 8] = mul.Tensor(%b_neg, %b_w)  # m.py:2
%c_sin : f32[B, S, 8] = sin(%b_mul)  # o.py:1
%c_mul : f32[B, S, 8] = mul.Tensor(%c_sin, %turn_t)  # o.py:1
%c_cos : f32[B, S, 8] = cos(%c_mul)  # o.py:1
%c_neg : f32[B, S, 8] = neg(%c_cos)  # o.py:1
%c_linear : f32[B, S, 8] = mw.linear(%c_neg, %m)  # o.py:2
%y : f32[B, S, 8] = relu(%c_linear)  # o.py:3
return %y
"""


def _items(graph: Graph, *kept: str) -> list[str]:
    """A unit by its operands and results, an op by its target."""
    found = grouped(graph, graph.ops, {*graph.outputs, *kept}, {op.output.name for op in graph.ops})
    return [_shown(item) if isinstance(item, Unit) else item.target for item in found]


def _shown(unit: Unit) -> str:
    return f"{' '.join(unit.operands)} -> {' '.join(unit.results)}"


def test_ops_of_a_submodule_between_matmuls_are_a_unit() -> None:
    graph = parse_graph(GRAPH)
    assert _items(graph) == [
        *("x a_w -> a_mul", "mw.linear", "l b_w -> b_mul", "b_mul turn_t -> c_neg", "mw.linear", "relu"),
    ]


def test_a_unit_hands_out_what_is_kept() -> None:
    graph = parse_graph(GRAPH)
    assert _items(graph, "a_exp", "a_neg")[0] == "x a_w -> a_mul a_exp a_neg"


def _functions(*kept: str) -> tuple[list[str], str]:
    """Names of the units' functions in order, and the text of all functions."""
    graph, plan = parse_graph(GRAPH), _plan(CASES["gemma2_single"])
    local, functions = Locals(graph, {}, plan), Functions({"c"})
    outputs = {*graph.outputs, *kept}
    items = grouped(graph, graph.ops, outputs, {op.output.name for op in graph.ops})
    names = [functions.name(item, local) for item in items if isinstance(item, Unit)]
    writer = Writer()
    functions.write(writer)
    return names, writer.text()


def test_units_of_equal_text_share_a_function_named_after_the_first() -> None:
    names, text = _functions()
    assert names == ["a", "a", "turn"]  # the third has matmuls beside it, and applies a context
    assert "def a(x, w):" in text and text.count("torch.exp(x)") == 1


def test_a_function_that_hands_out_more_is_another_one() -> None:
    names, text = _functions("b_tanh")
    assert names == ["a", "b_with_tanh", "turn"]
    assert "return mul, tanh" in text


def test_views_in_a_row_are_one_line() -> None:
    graph = parse_graph(
        """graph g
%x : f32[B, S, 8] = input activation "x"
%v : f32[B, S, 2, 4] = view(%x, size=[B, S, 2, 4])  # m.py:1
%t : f32[B, 2, S, 4] = transpose.int(%v, dim0=1, dim1=2)  # m.py:1
%p : f32[B, 2, S, 4] = pow.Tensor_Scalar(%t, exponent=1)  # m.py:2
%y : f32[B, 2, S, 4] = mul.Tensor(%p, %t)  # m.py:2
return %y
"""
    )
    local = Locals(graph, {}, _plan(CASES["gemma2_single"]))
    lines = Lines(graph.ops, graph.outputs, local)
    assert [lines.text(op) for op in lines.ops] == ["x.reshape(B, S, 2, 4).transpose(1, 2)", "t * t"]
    kept = Lines(graph.ops, {"v", "y"}, local)
    assert [lines.text(op) for op in kept.ops][:1] == ["x.reshape(B, S, 2, 4)"]


LONG = [f"{'long_' * 8}{n}" for n in range(4)]


@pytest.mark.parametrize(
    "text",
    [
        f"kernels.add({', '.join(LONG)}, scale=(1, 2))",
        f"{LONG[0]} = kernels.make({', '.join(LONG)})",
        f"{LONG[0]} = {LONG[1]} + {LONG[2]}",
        f"{', '.join(LONG)} = kernels.make(one, two)",
        f"{', '.join(LONG)} = kernels.make({', '.join(LONG)})",
        f"return {', '.join(LONG)}",
        f"return torch.cat({', '.join(LONG)}, dim=-1)",
        f"{LONG[0]} = torch.cat(({LONG[1]}, {LONG[2]}), dim=-1)",
        f"{LONG[0]} = {LONG[1]}.reshape(1, 2).narrow(0, 1, 2)",
        f"{LONG[0]} = {LONG[1]}_{LONG[1]} + {LONG[2]}",
    ],
    ids=range(10),
)
def test_a_long_line_is_broken_and_says_the_same(text: str) -> None:
    writer = Writer()
    with writer.block("def f():"):
        writer.call(text)
    broken, whole = ast.parse(writer.text()), ast.parse(f"def f():\n    {text}")
    assert ast.dump(broken) == ast.dump(whole)
    assert max(map(len, writer.text().splitlines())) <= 100


def test_a_submodule_with_a_number_for_a_name_gives_no_name_that_begins_with_it() -> None:
    segmented = trace(ValueResidual, "values", "f64", VOCAB).segmented
    graph = next(s.graph for s in segmented.segments if "norm_2_w" in s.graph.values)
    ops = tuple(op for op in graph.ops if op.output.name.startswith("norm_2"))
    unit = Unit(ops, ("x", "norm_2_w"), (ops[-1].output.name,))
    assert title(unit, graph) == "norm"
