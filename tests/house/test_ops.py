"""Ops are known by their definitions: no room but ir/ops and the emitters asks for a name.

An op's name is printed and handed on everywhere; compared, looked up or taken apart it is in the
registry only. `node.target` in ir/capture is torch's overload, not an op's name.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from house.rooms import name_of, room_files

FREE = ("ir/ops/", "codegen/emitters/")
LOOKUPS = {"get", "setdefault", "pop", "startswith", "endswith", "removeprefix", "removesuffix"}
LOOKUPS |= {"partition", "rpartition", "split"}


def _is_name_of_op(node: ast.expr, path: Path) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr != "target":
        return False
    of_fx = isinstance(node.value, ast.Name) and node.value.id == "node"
    return not (of_fx and name_of(path).startswith("ir/capture/"))


def _asked(node: ast.AST) -> list[ast.expr]:
    """What a node compares, subscripts by, or looks up."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Subscript):
        return [node.slice]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return [node.func.value, *node.args] if node.func.attr in LOOKUPS else []
    return [node.subject] if isinstance(node, ast.Match) else []


def _questions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if any(_is_name_of_op(item, path) for item in _asked(node)):
            yield f"{name_of(path)}:{getattr(node, 'lineno', 0)} {ast.unparse(node)}"


def test_no_room_asks_for_the_name_of_an_op() -> None:
    rooms = [path for path in room_files() if not name_of(path).startswith(FREE)]
    found = [question for path in rooms for question in _questions(path)]
    assert not found, "ask definition(op) instead:\n" + "\n".join(found)
