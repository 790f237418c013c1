"""The local functions of a stage: each unit's text once, under a name of its own."""

from collections.abc import Collection

from meshwright.ir.graph import Graph

from .lines import Lines
from .local import Locals
from .units import Unit, free, local_names, plain, title
from .writer import Writer

_NAMED = 2  # values beside the result that a function's name tells


class Functions:
    """Functions by their text; names hide nothing that the stage calls otherwise."""

    def __init__(self, taken: Collection[str]) -> None:
        self._taken = set(taken)
        self._names: dict[tuple[str, ...], str] = {}
        self._sources: dict[str, str] = {}

    def name(self, unit: Unit, local: Locals) -> str:
        """The function of a unit, written now if no unit before it had the same text."""
        names = local_names(unit, local.graph, self._names.values())
        text = _text(unit, local, names)
        if text not in self._names:
            self._taken.update(names.values())
            self._names[text] = free(_title(unit, local.graph, names), self._taken)
            self._taken.add(self._names[text])
            self._sources[self._names[text]] = unit.source
        return self._names[text]

    def write(self, writer: Writer) -> None:
        for (arguments, *lines), name in self._names.items():
            writer.lines("", "")
            with writer.block(f"def {name}({arguments}):"):
                writer.line(f"# {self._sources[name]}")
                for line in lines:
                    writer.call(line)


def _text(unit: Unit, local: Locals, names: dict[str, str]) -> tuple[str, ...]:
    """Arguments, then the lines of the body."""
    lines = Lines(unit.ops, unit.results, local, names)
    body = [
        f"{', '.join(names[v.name] for v in op.outputs)} = {lines.text(op)}" for op in lines.ops
    ]
    results = ", ".join(names[n] for n in unit.results)
    last, _, made = body[-1].partition(" = ")
    ending = [f"return {made}"] if last == results else [body[-1], f"return {results}"]
    return (", ".join(names[n] for n in unit.operands), *body[:-1], *ending)


def _title(unit: Unit, graph: Graph, names: dict[str, str]) -> str:
    """The unit's title, and what the function returns beside the unit's own result."""
    more = [plain(names[n]).strip("_") for n in unit.results[1:]]
    if not more:
        return title(unit, graph)
    return f"{title(unit, graph)}_with_{'_'.join(more) if len(more) <= _NAMED else 'parts'}"
