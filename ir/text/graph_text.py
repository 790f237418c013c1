"""The text form of graphs. One line an input or op; printed again it is the same bytes.

    meshwright graph v1
    graph mlp
    %x : f32[B, S, 64] = input data "x"
    %w : f32[64, 64] = input param "fc.weight"
    %h : f32[B, S, 64] = mw.linear(%x, %w)  # models/mlp.py:14
    return %h

The line of a frozen parameter ends in `frozen`. With placements, each value carries its own after
its shape: `%h : f32[B, S, 64] @ [{}, {}, {tp}]`.
"""

import ast
import re
from dataclasses import replace

import sympy

from ..errors import ParseError
from ..graph import Attr, Graph, Input, Op, Value, text_hash, verify
from ..placement import Placement, format_placement, parse_placement
from ..sizes import format_size, parse_size

HEADER = "meshwright graph v1"
Placements = dict[str, Placement]


def format_graph(graph: Graph, placements: Placements | None = None, header: bool = True) -> str:
    """The graph as text; with `placements`, each value annotated by its own."""
    lines = [HEADER] if header else []
    lines.append(f"graph {graph.name}")
    lines += [_format_input(item, placements) for item in graph.inputs]
    lines += [_format_op(op, placements) for op in graph.ops]
    lines.append("return " + ", ".join(_ref(name) for name in graph.outputs))
    return "\n".join(lines) + "\n"


def computation_hash(graph: Graph) -> str:
    """Hash of what a graph computes: not of where its code stands, how parameters start, or which
    of them are trained."""
    inputs = tuple(replace(item, init="", trainable=True) for item in graph.inputs)
    ops = tuple(replace(op, source="") for op in graph.ops)
    return text_hash(format_graph(Graph("", inputs, ops, graph.outputs)))


def _ref(name: str) -> str:
    return f"%{name}" if name else "-"


def format_value(value: Value, placements: Placements | None = None) -> str:
    text = f"%{value.name} : {value.dtype}[{', '.join(format_size(s) for s in value.shape)}]"
    if placements is not None and value.name in placements:
        text += f" @ {format_placement(placements[value.name])}"
    return text


def _format_input(item: Input, placements: Placements | None) -> str:
    init = f" init {item.init}" if item.init else ""
    frozen = "" if item.trainable else " frozen"
    return f'{format_value(item.value, placements)} = input {item.kind} "{item.ref}"{init}{frozen}'


def _format_op(op: Op, placements: Placements | None) -> str:
    outputs = "; ".join(format_value(v, placements) for v in op.outputs)
    arguments = [_ref(name) for name in op.inputs]
    arguments += [f"{name}={format_attr(value)}" for name, value in op.attrs]
    source = f"  # {op.source}" if op.source else ""
    return f"{outputs} = {op.target}({', '.join(arguments)}){source}"


def format_attr(value: Attr) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(format_attr(v) for v in value) + "]"
    if isinstance(value, sympy.Expr):
        return format_size(value)
    return repr(value)


def parse_attr(text: str) -> Attr:
    """Inverse of format_attr: Python literals, or an expression over B and S."""
    return _attr_of(ast.parse(text.strip(), mode="eval").body)


def _attr_of(node: ast.expr) -> Attr:
    if isinstance(node, ast.List):
        return tuple(_attr_of(e) for e in node.elts)
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-inf":
        return float("-inf")
    operand = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(operand, ast.Name | ast.BinOp | ast.Call):
        return parse_size(ast.unparse(node))
    return ast.literal_eval(node)


_VALUE = re.compile(r"%(?P<name>\S+) : (?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?: @ (?P<at>.+))?$")
_INPUT = re.compile(
    r'(?P<value>%.+) = input (?P<kind>\w+) "(?P<ref>[^"]*)"(?: init (?P<init>.+?))?'
    r"(?P<frozen> frozen)?$"
)
_OP = re.compile(r"(?P<outs>%.+?) = (?P<target>[\w.:]+)\((?P<args>.*)\)(?:  # (?P<src>.*))?$")


def parse_graph(text: str) -> Graph:
    return parse_placed_graph(text)[0]


def parse_placed_graph(text: str) -> tuple[Graph, Placements]:
    """Graph and placements of a text, verified. Raises ParseError with the line at fault."""
    lines = text.splitlines()
    first = 1
    if lines and lines[0].startswith("meshwright "):
        if lines[0] != HEADER:
            raise ParseError(f"line 1: expected {HEADER!r}, found {lines[0]!r}")
        lines, first = lines[1:], 2
    state = _Reader()
    for number, line in enumerate(lines, first):
        try:
            state.read(line)
        except (ValueError, TypeError, SyntaxError) as error:
            raise ParseError(f"line {number}: {with_line(line, error)}") from None
    if state.name is None or state.outputs is None:
        raise ParseError(f"a graph needs a 'graph' and a 'return' line; {len(lines)} lines read")
    graph = Graph(state.name, tuple(state.inputs), tuple(state.ops), state.outputs)
    return verify(graph), state.placements


def with_line(line: str, error: Exception) -> str:
    """The error's message, with the line that it is about."""
    return str(error) if repr(line) in str(error) else f"{line!r}: {error}"


class _Reader:
    def __init__(self) -> None:
        self.name: str | None = None
        self.inputs: list[Input] = []
        self.ops: list[Op] = []
        self.outputs: tuple[str, ...] | None = None
        self.placements: Placements = {}

    def read(self, line: str) -> None:
        if line.startswith("graph "):
            self.name = line.removeprefix("graph ")
        elif line.startswith("return"):
            names = [n for n in line.removeprefix("return").strip().split(", ") if n]
            self.outputs = tuple("" if n == "-" else n.removeprefix("%") for n in names)
        elif match := _INPUT.match(line):
            value = self.value(match["value"])
            init, trainable = match["init"] or "", not match["frozen"]
            self.inputs.append(Input(value, match["kind"], match["ref"], init, trainable))
        elif match := _OP.match(line):
            self.ops.append(self.op(match))
        else:
            raise ParseError(f"{line!r}: not an input, op or return")

    def value(self, text: str) -> Value:
        match = _VALUE.match(text)
        if match is None:
            raise ParseError(f"not a value: {text!r}")
        shape = tuple(parse_size(s) for s in match["shape"].split(", ") if s)
        if match["at"]:
            self.placements[match["name"]] = parse_placement(match["at"])
        return Value(match["name"], match["dtype"], shape)

    def op(self, match: re.Match) -> Op:
        inputs, attrs = [], []
        for argument in split_top(match["args"]):
            if argument == "-" or argument.startswith("%"):
                inputs.append(argument[1:])
            else:
                name, _, value = argument.partition("=")
                attrs.append((name, parse_attr(value)))
        outputs = tuple(self.value(t) for t in match["outs"].split("; "))
        return Op(match["target"], tuple(inputs), outputs, tuple(attrs), match["src"] or "")


def split_top(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, start, quote = [], 0, 0, ""
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[({":
            depth += 1
        elif char in "])}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    tail = text[start:].strip()
    return [*parts, tail] if tail else parts
