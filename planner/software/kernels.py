"""Kernels of libraries in a stack that compiles nothing: norms and rotary embeddings.

Such a kernel reads what enters a chain of pointwise ops and writes what leaves it; its backward
reads what entered forward, and computes in between what our graph would keep. A chain is known by
what it does: a norm reduces the features of a row, a rotary embedding joins the halves of heads.
Its backward is known by the lines of source that the chain was traced from. The sums over rows for
a norm's weight are a kernel of their own, which reads the gradient and what entered.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from meshwright.ir.graph import Graph, Op
from meshwright.ir.ops.reduction import reduced_dims
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import forward_ops

from ..cost.phase_work import PhaseWork

KINDS = ("norm", "rope")


@dataclass(frozen=True)
class Kernel:
    """One kernel: an op of it, the values that it reads and those that it writes."""

    op: Op
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Chain:
    """Forward ops that are one kernel there, and the values that enter it."""

    ops: tuple[Op, ...]
    reads: tuple[str, ...]

    @cached_property
    def lines(self) -> frozenset[str]:
        return frozenset(op.source for op in self.ops)

    @cached_property
    def makes(self) -> frozenset[str]:
        return frozenset(v.name for op in self.ops for v in op.outputs)


@dataclass(frozen=True)
class Library:
    """The chains of a joint graph whose kind a stack has kernels for."""

    graph: Graph
    kinds: tuple[str, ...]

    @cached_property
    def chains(self) -> tuple[Chain, ...]:
        found = (tuple(ops) for ops in _connected(forward_ops(self.graph)))
        return tuple(
            Chain(ops, _outer(self.graph, ops))
            for ops in found
            if _kind(self.graph, ops) in self.kinds
        )

    def spared(self, saved: Iterable[str]) -> frozenset[str]:
        """Return the saved values that only the backward of their own chain would read."""
        return frozenset(
            name
            for chain in self.chains
            for name in chain.makes.intersection(saved)
            if all(op.source in chain.lines for op in self._readers(name))
        )

    def _readers(self, name: str) -> Iterator[Op]:
        """Give the ops that read a value or a view of it, views aside."""
        for op in self.graph.users[name]:
            if definition(op).free:
                yield from self._readers(op.output.name)
            else:
                yield op

    def kernels(self, work: PhaseWork) -> Iterator[Kernel]:
        """Give the kernels of a function's pointwise ops, of one op each outside of the chains."""
        grads = {item.value.name for item in self.graph.inputs_of("grad")}
        parts: dict[tuple[int, bool], list[Op]] = {}
        for op in (op for op in work.graph.ops if definition(op).fused):
            at = next((k for k, c in enumerate(self.chains) if op.source in c.lines), None)
            if at is None or grads.intersection(op.inputs):
                reads = tuple(name for name in op.inputs if name)
                yield Kernel(op, reads, tuple(v.name for v in op.outputs))
            else:
                parts.setdefault((at, op.output.name in work.sums.apart), []).append(op)
        for (at, _), ops in parts.items():
            yield self._joined(work.graph, self.chains[at], ops)

    def _joined(self, graph: Graph, chain: Chain, ops: list[Op]) -> Kernel:
        """Return the kernel of some ops, which has what entered their chain for what it made."""
        made = {v.name for op in ops for v in op.outputs}
        reads = [chain.reads if n in chain.makes else (n,) for n in _outer(graph, ops)]
        spared = self.spared(chain.makes)
        writes = (n for n in made if n not in spared and _leaves(graph, n, made))
        joined = dict.fromkeys(name for names in reads for name in names)
        return Kernel(ops[0], tuple(joined), tuple(writes))


def _connected(ops: Iterable[Op]) -> list[list[Op]]:
    """Return runs of pointwise ops that read one another's values, views between them aside."""
    found: list[list[Op]] = []
    home: dict[str, int] = {}
    for op in ops:
        homes = {home[name] for name in op.inputs if name in home}
        if not (definition(op).fused or definition(op).free):
            continue
        if definition(op).free and not homes:
            continue
        at = min(homes, default=len(found))
        if at == len(found):
            found.append([])
        for other in homes - {at}:
            found[at] += found[other]
            home.update((v.name, at) for one in found[other] for v in one.outputs)
            found[other] = []
        found[at].append(op)
        home.update((v.name, at) for v in op.outputs)
    return [[op for op in run if definition(op).fused] for run in found]


def _kind(graph: Graph, ops: tuple[Op, ...]) -> str:
    """Return what a chain is, "" for others."""
    if any(_reduces_features(graph, op) for op in ops):
        return "norm"
    moved = (op for op in ops if definition(op).kind == "movement")
    return "rope" if any(len(op.inputs) > 1 for op in moved) else ""


def _reduces_features(graph: Graph, op: Op) -> bool:
    if definition(op).kind != "reduction":
        return False
    rank = len(graph.values[op.inputs[0]].shape)
    return reduced_dims(op, rank) == {rank - 1}


def _outer(graph: Graph, ops: Iterable[Op]) -> tuple[str, ...]:
    """Return the storages that ops read and do not make."""
    given = tuple(ops)
    made = {v.name for op in given for v in op.outputs}
    names = (_storage(graph, name) for op in given for name in op.inputs if name)
    return tuple(dict.fromkeys(name for name in names if name not in made))


def _storage(graph: Graph, name: str) -> str:
    while (op := graph.producer.get(name)) is not None and definition(op).free:
        name = op.inputs[0]
    return name


def _leaves(graph: Graph, name: str, made: set[str]) -> bool:
    """Return whether anything beside its own kernel reads a value."""
    if name in graph.outputs:
        return True
    users = graph.users.get(name, ())
    return any(
        _leaves(graph, op.output.name, made) if definition(op).free else op.output.name not in made
        for op in users
    )
