"""Units: ops of one part of a submodule that a stage prints once, as a local function.

Candidates are ops in a row that run inside the kernels of their neighbours (no matmuls, no
collectives) and come from one submodule or from one line of it. Those that feed one another are a
unit: a norm, the rotation of queries, the rotation of keys. Units whose functions have equal text
share one: structure decides, where the ops stand in the model only names the function.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby

from meshwright.ir.graph import Graph, Op
from meshwright.ir.ops.registry import definition

from .local import identifier

SMALLEST = 4  # ops; what is shorter reads as well in its place


@dataclass(frozen=True)
class Unit:
    """Ops in the graph's order, the values they read, and those that are read after them."""

    ops: tuple[Op, ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def source(self) -> str:
        return self.ops[0].source


def grouped(
    graph: Graph, ops: Sequence[Op], outputs: Collection[str], allowed: Collection[str]
) -> list[Op | Unit]:
    """Return the ops of a function in order, with the ops of each unit gathered into one item.

    outputs: values that the function hands out. allowed: first outputs of ops that may join.
    """
    found: list[Op | Unit] = []
    for file, run in groupby(ops, key=lambda op: _file(op) if _joins(op, allowed) else ""):
        for part in _parts(graph, list(run)) if file else ([op] for op in run):
            found += [_unit(graph, part, ops, outputs)] if len(part) >= SMALLEST else part
    return found


def _file(op: Op) -> str:
    return op.source.rpartition(":")[0]


def _joins(op: Op, allowed: Collection[str]) -> bool:
    return op.output.name in allowed and _inside(op)


def _inside(op: Op) -> bool:
    """Whether an op runs inside the kernels of its neighbours."""
    asked = definition(op)
    return asked.fused or asked.free or asked.source


def _parts(graph: Graph, ops: list[Op]) -> Iterator[list[Op]]:
    """Split ops in a row from one file into candidates: whole submodules, else single lines."""
    for part in _connected(ops):
        if _whole(part, graph):
            yield part
        else:
            for _, line in groupby(part, key=lambda op: op.source):
                yield from _connected(list(line))


def _connected(ops: list[Op]) -> list[list[Op]]:
    """The ops in parts that read nothing of one another, in the order of their first ops."""
    parts: list[list[Op]] = []
    for op in ops:
        feeding = [p for p in parts if any(o.output.name in op.inputs for o in p)]
        parts = [p for p in parts if p not in feeding] + [[*sum(feeding, []), op]]
    return sorted(parts, key=lambda part: ops.index(part[0]))


def _unit(graph: Graph, part: list[Op], function: Sequence[Op], outputs: Collection[str]) -> Unit:
    order = {op.output.name: index for index, op in enumerate(graph.ops)}
    ops = sorted(part, key=lambda op: order[op.output.name])
    made = [v.name for op in ops for v in op.outputs]
    inside = {op.output.name for op in ops}
    read = {n for op in function if op.output.name not in inside for n in op.inputs} | set(outputs)
    operands = dict.fromkeys(n for op in ops for n in op.inputs if n and n not in made)
    given = {i.value.name for i in graph.inputs if i.kind != "activation"}
    results = [n for n in made if n in read]
    return Unit(
        tuple(ops), tuple(sorted(operands, key=given.__contains__)), (*results[-1:], *results[:-1])
    )


def title(unit: Unit, graph: Graph) -> str:
    """Return the name of a unit's function, which a number may still have to make unique.

    The submodule gives it where the unit is a whole one; else the submodule whose context the unit
    applies, or the unit's result.
    """
    module = plain(_prefix(unit.ops)).rpartition("_")[2]
    if _whole(unit.ops, graph) and module.isidentifier():
        return module
    context = [i.value.name for i in graph.inputs_of("context") if i.value.name in unit.operands]
    return _common(context) or plain(unit.results[0])


def _prefix(ops: Sequence[Op]) -> str:
    """The words that the names of all values of some ops begin with: their submodule's name."""
    return _common([v.name for op in ops for v in op.outputs])


def _whole(ops: Sequence[Op], graph: Graph) -> bool:
    """Whether ops are a submodule: its other lines run inside kernels, as they do."""
    own, lines = _prefix(ops), {op.source for op in ops}
    others = (op for op in graph.ops if op.source not in lines and not _inside(op))
    return bool(own) and not any(identifier(op.output.name).startswith(f"{own}_") for op in others)


def _common(names: Sequence[str]) -> str:
    words: list[str] = []
    for row in zip(*(identifier(n).split("_") for n in names), strict=False):
        if len(set(row)) > 1:
            break
        words.append(row[0])
    return "_".join(words if len(names) > 1 else words[:-1])


def plain(name: str) -> str:
    """A name as an identifier, without the numbers that tell it from others."""
    return re.sub(r"(_\d+)+$", "", identifier(name)) or identifier(name)


def local_names(unit: Unit, graph: Graph, taken: Collection[str]) -> dict[str, str]:
    """Names of a unit's values inside its function: without its submodule's, counted anew.

    taken: names that mean something else there.
    """
    own, whole = f"{_prefix(unit.ops)}_", _whole(unit.ops, graph)
    found: dict[str, str] = {}
    given = {i.value.name for i in graph.inputs if i.kind != "activation"}
    for name in unit.operands:
        short = _without(own, name)
        if name in given:
            short = short.rstrip("_").rpartition("_")[2] or "x"
        elif not (whole and short != plain(name)):
            short = "x"
        found[name] = free(short, {*taken, *found.values()})
    for name in (v.name for op in unit.ops for v in op.outputs):
        short = "result" if plain(name) == own[:-1] else _without(own, name)
        found[name] = free(short, {*taken, *found.values()})
    return found


def _without(own: str, name: str) -> str:
    """A value's name without its submodule's, and without a number that would begin it."""
    return plain(name).removeprefix(own).lstrip("0123456789_") or plain(name)


def free(name: str, taken: Collection[str]) -> str:
    """A name that hides none of `taken`, numbered where it must be."""
    numbered = (identifier(name if n == 1 else f"{name}_{n}") for n in count(1))
    return next(n for n in numbered if n not in taken)
