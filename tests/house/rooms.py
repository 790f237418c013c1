"""The rooms on disk, as the house rules see them: files, package names, imports."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("ir", "planner", "codegen", "runtime", "models", "proof", "api", "commands")
# Folders of code that is no room: tests and benchmarks use the doors, nothing imports them.
AROUND = ("tests", "benchmarks", "examples", "tools")


def room_files() -> list[Path]:
    """Every Python file of the rooms and of the root, sorted."""
    found = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    return sorted([*found, *ROOT.glob("*.py")])


def house_files() -> list[Path]:
    """The files of the rooms, and those around them; golden programs are text, not our code."""
    golden = ROOT / "tests" / "golden"
    around = [path for folder in AROUND for path in (ROOT / folder).rglob("*.py")]
    return room_files() + sorted(path for path in around if golden not in path.parents)


def name_of(path: Path) -> str:
    """The path as a rule or a message names it: relative to the root, with slashes."""
    return path.relative_to(ROOT).as_posix()


def packages_on_disk() -> list[str]:
    """The import name of every folder with an `__init__.py`, the root's first."""
    inits = [path for room in ROOMS for path in (ROOT / room).rglob("__init__.py")]
    folders = (path.parent.relative_to(ROOT).parts for path in inits)
    return ["meshwright", *sorted(".".join(("meshwright", *parts)) for parts in folders)]


def package_parts(path: Path) -> tuple[str, ...]:
    """The package that holds `path`, e.g. ('meshwright', 'ir') for ir/graph.py."""
    return ("meshwright", *path.relative_to(ROOT).parent.parts)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Each (line, absolute dotted name) that `path` imports, functions and branches included.

    A relative import is resolved; `from a import b` gives `a.b`, as `b` may be a module.
    """
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _source(path, node)
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def _source(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = package_parts(path)
    kept = package[: len(package) - (node.level - 1)]
    return ".".join((*kept, node.module) if node.module else kept)
