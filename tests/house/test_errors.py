"""An error names the value that failed: what, where, the two numbers, the way out."""

import ast
import builtins
import re
from pathlib import Path

from house.rooms import house_files, name_of, room_files

# Raises whose text says all there is: the value is the absence it names.
NO_VALUE_TO_SHOW = {
    """raise ModelError('positions = "learned" needs max_seq')""",
    """raise ModelError('window_pattern is empty; give at least one entry')""",
}
# An abstract method or an interrupted loop carries no text for a user.
NO_TEXT_NEEDED = {"NotImplementedError", "StopIteration", "KeyboardInterrupt", "SystemExit"}


def _literal(node: ast.expr | None) -> bool:
    """True for `X` and `X("text")` where neither class nor text can carry a value."""
    if isinstance(node, ast.Name):
        return hasattr(builtins, node.id) and node.id not in NO_TEXT_NEEDED
    if not isinstance(node, ast.Call) or node.keywords:
        return False
    name = ast.unparse(node.func).split(".")[-1]
    # A function that makes the error starts in lower case; its text is read where it is written.
    if name in NO_TEXT_NEEDED or not name[:1].isupper():
        return False
    # "has 0 labels" is a number too, written where no other can occur.
    constants = [part.value for part in node.args if isinstance(part, ast.Constant)]
    return len(constants) == len(node.args) and not re.search(r"\d", " ".join(map(str, constants)))


def _bare_raises(path: Path) -> list[tuple[str, str]]:
    """(place, text) of each raise in `path` that shows no value."""
    nodes = ast.walk(ast.parse(path.read_text()))
    raises = (node for node in nodes if isinstance(node, ast.Raise) and _literal(node.exc))
    return [(f"{name_of(path)}:{node.lineno}", ast.unparse(node)) for node in raises]


def test_each_raise_carries_a_value() -> None:
    found = [bare for path in room_files() for bare in _bare_raises(path)]
    bare = [f"{place} {text}" for place, text in found if text not in NO_VALUE_TO_SHOW]
    assert not bare, "say which value failed:\n" + "\n".join(bare)


def test_a_literal_raise_is_found() -> None:
    """The rule above can fail: planted, both forms are seen, and a message with a value is not."""
    planted = "raise ValueError('no')", "raise ValueError", "raise DataError('a' 'b')"
    for text in planted:
        node = ast.parse(text).body[0]
        assert isinstance(node, ast.Raise) and _literal(node.exc), text
    for text in (
        "raise ValueError(f'no {x}')",
        "raise",
        "raise NotImplementedError",
        "raise error",
    ):
        node = ast.parse(text).body[0]
        assert isinstance(node, ast.Raise) and not _literal(node.exc), text


SKIPS = {"pytest.skip": 0, "pytest.mark.skip": 0, "pytest.mark.skipif": 1}  # reason's position


def _silent(node: ast.AST) -> bool:
    """True for a skip that gives no reason."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in SKIPS:
        return False
    named = any(keyword.arg in {"reason", "msg"} for keyword in node.keywords)
    return not named and len(node.args) <= SKIPS[ast.unparse(node.func)]


def test_each_skip_says_what_is_missing() -> None:
    """Pytest lists skips with their reason (-ra); a skip without one would be silent."""
    silent = [
        f"{name_of(path)}:{node.lineno}"
        for path in house_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _silent(node)
    ]
    assert not silent, silent
