"""What is recorded of an op that nobody registered, so that it can be called again."""

import sys
from typing import Any

import torch
from torch.fx import Node

from ..graph import Attr
from ..ops.call import DEVICE, DTYPES, MODULE, OPERANDS, entry
from .lines import lines_of

Attrs = list[tuple[str, Attr]]


class CallRecord:
    """Flat operands of one call, its attributes, and where each operand belongs.

    values: what each node is, as FxReader has it.
    """

    def __init__(self, values: dict[Node, Any]) -> None:
        self.values = values
        self.inputs: list[str] = []
        self.attrs: Attrs = []
        self.layout: list[str] = []
        self.dtypes: list[str] = []
        self.positional = True  # no argument before was left out or is an attribute

    def operands(self, argument: Any, given: Any) -> bool:
        """Take an argument if it holds tensors; returns whether it did."""
        names = self._names(argument, given)
        if names is None:
            self.positional = False
            return False
        listed = isinstance(names, list)
        self.inputs += names if isinstance(names, list) else [names]
        keyword = argument.kwarg_only or not self.positional
        self.layout.append(entry(argument.name, len(names) if listed else None, keyword))
        return True

    def _names(self, argument: Any, given: Any) -> str | list[str] | None:
        if isinstance(given, Node):
            found = self.values[given]
            return list(found) if isinstance(found, tuple) else found if _is_name(found) else None
        if "Tensor" not in str(argument.type):
            return None
        if isinstance(given, list | tuple):
            return ["" if item is None else self.values[item] for item in given]
        return "" if given is None else None

    def attribute(self, name: str, given: Any, value: Attr) -> None:
        self.attrs.append((name, value))
        if isinstance(given, torch.dtype) and name != "dtype":
            self.dtypes.append(name)

    def notes(self, node: Node) -> Attrs:
        """The attributes about the call itself."""
        schema = node.target._schema  # type: ignore[union-attr]
        found: Attrs = []
        if any("[" in text or "=" in text for text in self.layout):
            found.append((OPERANDS, tuple(self.layout)))
        if self.dtypes:
            found.append((DTYPES, tuple(self.dtypes)))
        if not self.inputs and any(a.name == "device" for a in schema.arguments):
            found.append((DEVICE, True))
        module = registering_module(node)
        return [*found, (MODULE, module)] if module else found


def _is_name(found: object) -> bool:
    return isinstance(found, str)


def registering_module(node: Node) -> str:
    """The module that registers a custom op, else the one that calls it; "" where neither is known.

    What calls an op has imported what registers it.
    """
    name = node.target._schema.name  # type: ignore[union-attr]
    if name.partition("::")[0] in ("aten", "prims"):
        return ""
    made = getattr(torch._library.custom_ops, "OPDEFS", {}).get(name)
    module = getattr(getattr(made, "_init_fn", None), "__module__", "") or _calling_module(node)
    return "" if module == "__main__" else module


def _calling_module(node: Node) -> str:
    """The module of the innermost line outside torch."""
    lines = lines_of(node)
    loaded = {getattr(m, "__file__", None): name for name, m in list(sys.modules.items())}
    return loaded.get(lines[0][0], "") if lines else ""
