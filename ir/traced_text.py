"""The text form of captures. `parse_traced(format_traced(t)) == t`; reading it imports no torch.

`key: value` lines, then the graph, the joint graph of each unique segment, and the constants. The
segments are cut again when the text is read.
"""

import ast
import re

from .errors import ParseError
from .graph import text_hash
from .lengths import Lengths
from .segment import segment
from .text.graph_text import format_graph, parse_graph
from .text.plan_text import format_constant, parse_constant
from .traced import Traced

HEADER = "meshwright capture v2"


def format_traced(traced: Traced) -> str:
    """Return the text of a capture."""
    graph = format_graph(traced.graph)
    lines = (
        HEADER,
        f"model: {traced.model}",
        f"dtype: {traced.dtype}",
        f"vocab_size: {traced.vocab_size}",
        f"lengths: {tuple(traced.lengths)!r}",
        f"longest_apart: {traced.longest_apart!r}",
        f"warnings: {traced.warnings!r}",
        f"ways: {traced.ways!r}",
    )
    sections = [("graph", graph)]
    sections += [(f"joint {name}", format_graph(joint)) for name, joint in traced.joints.items()]
    sections.append(("constants", "".join(format_constant(c) for c in traced.constants)))
    return "\n".join(lines) + "\n" + "".join(f"\n[{name}]\n{body}" for name, body in sections)


def parse_traced(text: str) -> Traced:
    """Read a capture. Raises ParseError for a text of another version, and for a damaged one."""
    head, *rest = re.split(r"^\[(.+)\]\n", text, flags=re.MULTILINE)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    try:
        return _build(_keys(head), sections)
    except (KeyError, ValueError, SyntaxError) as error:
        raise ParseError(f"a damaged capture: {error!r}") from None


def _keys(head: str) -> dict[str, str]:
    first, *lines = head.splitlines() or [""]
    if first != HEADER:
        raise ParseError(f"a capture begins with {HEADER!r}, not {first[:40]!r}")
    return dict(line.split(": ", 1) for line in lines if line)


def _build(keys: dict[str, str], sections: dict[str, str]) -> Traced:
    bodies = {name: body.rstrip("\n") + "\n" for name, body in sections.items()}
    graph = parse_graph(bodies["graph"])
    segmented = segment(graph)
    return Traced(
        model=keys["model"],
        dtype=keys["dtype"],
        vocab_size=int(keys["vocab_size"]),
        graph_hash=text_hash(bodies["graph"]),
        graph=graph,
        segmented=segmented,
        joints={s.name: parse_graph(bodies[f"joint {s.name}"]) for s in segmented.segments},
        constants=tuple(map(parse_constant, sections["constants"].splitlines())),
        warnings=ast.literal_eval(keys["warnings"]),
        lengths=Lengths(*ast.literal_eval(keys["lengths"])),
        longest_apart=ast.literal_eval(keys["longest_apart"]),
        ways=ast.literal_eval(keys["ways"]),
    )
