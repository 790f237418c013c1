"""Replicated calls: ops that nobody registered, called again as torch knows them.

An op without a definition is planned whole on each rank and emitted as `torch.ops...` with the
arguments it was captured with. Its operands are flat; what they were is an attribute whose name
no argument can have:

    @operands  one entry an argument in the order of the schema: `x` by position, `x[2]` a list of
               two, a `=` behind it by keyword; left out where all are single and by position
    @dtypes    names of other attributes than `dtype` that hold a dtype
    @device    the op makes a tensor from nothing, on the device that codegen names
    @module    the Python module that registers the op
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..graph import Attr, Op

OPERANDS, DTYPES, DEVICE, MODULE = "@operands", "@dtypes", "@device", "@module"
PICKS_ROWS = ("index.Tensor", "index_select")  # of their first operand
Item = TypeVar("Item")


@dataclass(frozen=True)
class Argument(Generic[Item]):
    """The operands of an argument of a call: one, or a list; keyword: passed by name."""

    name: str
    given: Item | list[Item]
    keyword: bool = False


_ENTRY = re.compile(r"(?P<name>\w+)(?:\[(?P<count>\d+)\])?(?P<keyword>=?)")


def entry(name: str, count: int | None, keyword: bool) -> str:
    """The text of an argument in `@operands`; count: of a list."""
    return name + ("" if count is None else f"[{count}]") + "=" * keyword


def arguments_of(op: Op, operands: Sequence[Item]) -> Iterator[Argument[Item]]:
    """The arguments that hold the op's operands; `operands` stands for op.inputs."""
    layout, rest = op.attr(OPERANDS), list(operands)
    if layout is None:
        yield from (Argument("", given) for given in rest)
        return
    for text in layout:
        match = _ENTRY.fullmatch(text)
        assert match is not None, text
        count = match["count"]
        given = rest.pop(0) if count is None else [rest.pop(0) for _ in range(int(count))]
        yield Argument(match["name"], given, bool(match["keyword"]))


def attributes_of(op: Op) -> list[tuple[str, Attr, bool]]:
    """(name, value, whether it is a dtype) of what is passed beside the operands."""
    dtypes = ("dtype", *op.attr(DTYPES, ()))
    return [(n, v, n in dtypes and isinstance(v, str)) for n, v in op.attrs if n[0] != "@"]


def registrations(ops: Iterable[Op]) -> dict[str, list[str]]:
    """Custom ops by the module that registers them, in order of use."""
    found: dict[str, dict[str, None]] = {}
    for op in ops:
        if (module := op.attr(MODULE)) is not None:
            found.setdefault(module, {})[op.target] = None
    return {module: list(names) for module, names in found.items()}


def replicated_note(op: Op, graph: str) -> str:
    """The coverage line of an op that stays whole on every rank."""
    where = op.source or f"gradients of {graph}"
    note = f"{op.target} has no factor rule and stays replicated ({where})"
    if "::" not in op.target:
        return note
    module = op.attr(MODULE)
    if module is None:
        return f"{note}; what registers it is unknown: import it before the program runs"
    return f"{note}; the program imports {module}, which registers it"
