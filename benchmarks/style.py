"""The style of the code in numbers: lengths of functions and files, import circles, docstrings.

    python benchmarks/style.py [--check] [--list]

Read from the syntax trees of the rooms, `cli.py` and `commands/`; nothing is imported. A function's
length is the number of its lines from `def` to its end, its docstring and blank lines included,
decorators not; functions inside functions count by themselves, too. A circle is a strongly
connected set of modules, or of sub-packages; a module that lies directly in a room stands for
itself among the sub-packages. Imports for type checkers only make no circle. The imports of a
module are listed twice: those that run when it is imported, and with those inside functions.

A public docstring is flagged by its first word, from the closed sets in `NO_VERB`: question words,
pronouns, prepositions and conjunctions, and verbs in the third person. Whether any other word is a
verb or a noun is not told from the word alone (`Bytes of a rank`, `Yields a rank`): what is
flagged is rarely good, what is not flagged may still be bad.
"""

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median

import networkx

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "meshwright"
PLACES = ("ir", "planner", "codegen", "runtime", "models", "api", "commands", "cli.py")
MEDIAN_LINES = 6
P90_LINES = 17
FILE_LINES = 500
NO_VERB = frozenset(
    """
    what whether how why when where who whose which
    it its this that these those they there we you he one's
    if as for from in into of on onto with without to by at per under over between after before
    because since while so but and or not only also then unless until
    returns raises gives takes makes reads writes prints runs holds keeps says tells shows yields
    checks computes creates builds finds gets sets adds removes loads saves parses formats converts
    applies calls counts chooses decides describes does has is are was were can may must should
    """.split()
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Imports = dict[str, set[str]]


@dataclass(frozen=True)
class Source:
    """A file of the rooms. module: its import name, e.g. meshwright.ir.graph."""

    path: str
    module: str
    is_package: bool
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)


@dataclass(frozen=True)
class Numbers:
    """What is measured. lengths: lines of each function, keyed by place. circles: by kind."""

    lengths: dict[str, int]
    long_files: dict[str, int]
    circles: dict[str, list[list[str]]]
    docstrings: int
    flagged: list[str]

    @property
    def median(self) -> float:
        return median(self.lengths.values())

    @property
    def p90(self) -> int:
        """The smallest length that nine of ten functions do not pass."""
        ordered = sorted(self.lengths.values())
        return ordered[ceil(0.9 * len(ordered)) - 1]


def read_sources(root: Path) -> list[Source]:
    """Return every Python file of the rooms and the command line, sorted by path."""
    found = [path for place in PLACES for path in _files(root / place)]
    return [_source(root, path) for path in sorted(found)]


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else list(place.rglob("*.py"))


def _source(root: Path, path: Path) -> Source:
    relative = path.relative_to(root)
    is_package = path.name == "__init__.py"
    parts = relative.parent.parts if is_package else relative.with_suffix("").parts
    return Source(str(relative), ".".join((PACKAGE, *parts)), is_package, path.read_text())


def measure(sources: list[Source]) -> Numbers:
    """Return the numbers of these files."""
    docstrings = [row for source in sources for row in _public_docstrings(source)]
    sizes = {s.path: len(s.text.splitlines()) for s in sources}
    return Numbers(
        {place: lines for source in sources for place, lines in _lengths(source)},
        {path: lines for path, lines in sizes.items() if lines > FILE_LINES},
        _all_circles(sources),
        len(docstrings),
        [f"{place}: {first_line}" for place, first_line in docstrings if _is_flagged(first_line)],
    )


def _lengths(source: Source) -> Iterator[tuple[str, int]]:
    for node in ast.walk(source.tree):
        if isinstance(node, Function):
            yield f"{source.path}:{node.lineno} {node.name}", _num_lines(node)


def _num_lines(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _public_docstrings(source: Source) -> Iterator[tuple[str, str]]:
    """Yield (place, first line) for public functions and classes, and public methods of these."""
    for node in _public(source.tree):
        text = ast.get_docstring(node)
        if text:
            yield f"{source.path}:{node.lineno} {node.name}", text.splitlines()[0]


def _public(tree: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


def _is_flagged(first_line: str) -> bool:
    words = first_line.split()
    return bool(words) and words[0].strip(".,:;").lower() in NO_VERB


def _all_circles(sources: list[Source]) -> dict[str, list[list[str]]]:
    """Return the circles of modules and of sub-packages, without and with inner imports."""
    found = {}
    for inner, suffix in ((False, "on import"), (True, "inside functions, too")):
        modules = _imports_of_all(sources, inner)
        found[f"modules, {suffix}"] = _circles(modules)
        found[f"sub-packages, {suffix}"] = _circles(_by_package(modules))
    return found


def _imports_of_all(sources: list[Source], inner: bool) -> Imports:
    known = {source.module for source in sources}
    return {s.module: set(_imports(s, known, inner)) - {s.module} for s in sources}


def _imports(source: Source, known: set[str], inner: bool) -> Iterator[str]:
    """Yield the modules of the rooms that a file imports."""
    for node in _import_nodes(source.tree, inner):
        for name in _names(source, node):
            module = name if name in known else name.rpartition(".")[0]
            if module in known:
                yield module


def _import_nodes(tree: ast.AST, inner: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports below a node, but for type checkers; without those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not _is_for_checkers(node) and (inner or not isinstance(node, Function)):
            yield from _import_nodes(node, inner)


def _is_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _names(source: Source, node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return what an import names, absolute: `from a import b` gives a.b, which may be a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{_origin(source, node)}.{alias.name}" for alias in node.names]


def _origin(source: Source, node: ast.ImportFrom) -> str:
    """Return the absolute name behind `from`."""
    if not node.level:
        return node.module or ""
    parts = source.module.split(".")
    kept = parts[: len(parts) + source.is_package - node.level]
    return ".".join((*kept, node.module) if node.module else kept)


def _by_package(modules: Imports) -> Imports:
    merged: defaultdict[str, set[str]] = defaultdict(set)
    for module, imported in modules.items():
        package = _package(module)
        merged[package] |= {_package(name) for name in imported} - {package}
    return merged


def _package(module: str) -> str:
    """Return the sub-package, e.g. meshwright.runtime.data; elsewhere the module itself."""
    return ".".join(module.split(".")[:3])


def _circles(imports: Imports) -> list[list[str]]:
    graph = networkx.DiGraph([(a, b) for a, found in imports.items() for b in sorted(found)])
    sets = networkx.strongly_connected_components(graph)
    return sorted(sorted(names) for names in sets if len(names) > 1)


def faults(numbers: Numbers) -> list[str]:
    """Return one line for each limit that is passed."""
    found = [
        f"median length {numbers.median:g} > {MEDIAN_LINES}" * (numbers.median > MEDIAN_LINES),
        f"p90 length {numbers.p90} > {P90_LINES}" * (numbers.p90 > P90_LINES),
        *(f"{path}: {lines} lines > {FILE_LINES}" for path, lines in numbers.long_files.items()),
        *(f"circle of {kind}: {_short(c)}" for kind, cs in numbers.circles.items() for c in cs),
    ]
    return [fault for fault in found if fault]


def _short(circle: list[str]) -> str:
    return ", ".join(name.removeprefix(f"{PACKAGE}.") for name in circle)


def _table(numbers: Numbers) -> str:
    rows = [
        ("functions", len(numbers.lengths), ""),
        ("median of their lines", f"{numbers.median:g}", MEDIAN_LINES),
        ("90th percentile of their lines", numbers.p90, P90_LINES),
        ("longest", max(numbers.lengths.values()), ""),
        (f"files past {FILE_LINES} lines", len(numbers.long_files), 0),
        *((f"circles of {kind}", len(found), 0) for kind, found in numbers.circles.items()),
        ("public docstrings", numbers.docstrings, ""),
        ("flagged by their first word", len(numbers.flagged), ""),
    ]
    lines = [f"| {name} | {value} | {limit} |" for name, value, limit in rows]
    return "\n".join(["| what | number | limit |", "|---|---|---|", *lines])


def main() -> int:
    """Print the table; with --check return 1 where a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where a limit is passed")
    parser.add_argument("--list", action="store_true", help="list the flagged docstrings, too")
    options = parser.parse_args()
    numbers = measure(read_sources(ROOT))
    found = faults(numbers)
    print("\n".join([_table(numbers), *found, *(numbers.flagged if options.list else ())]))
    return int(options.check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
