"""From fx nodes to ops: what torch.export and make_fx leave behind, in the words of the IR."""

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ..dtypes import FLOATS, SHORT_NAMES, TORCH_NAMES
from ..errors import CaptureError, SizeError
from ..graph import Attr, Input, Op, Value
from ..ops.registry import named
from ..sizes import B, Size, format_size, is_symbolic, size_of
from .calls import Attrs, CallRecord
from .lines import source_of
from .nodes import (
    CAST,
    NO_OP,
    Drawn,
    drawn_by,
    draws_of_its_own,
    draws_otherwise,
    own_draws,
    target_name,
    where,
    writes,
)
from .steps import over_tokens
from .symbolic import sizes_of

# Values that capture adds behind the model's own.
_OF_THE_LOSS = """
    draws rows denominator
    loss loss_lse loss_picked loss_logits loss_nll loss_valid loss_masked loss_sum
""".split()


def short_dtype(dtype: torch.dtype, of: str = "a buffer, a parameter or a constant") -> str:
    """Return the short name of a dtype. Raises CaptureError for one that no plan has."""
    name = str(dtype).removeprefix("torch.")
    if name not in SHORT_NAMES:
        known = ", ".join(SHORT_NAMES)
        raise CaptureError(f"{of} is {name}, and a plan knows {known}; keep it as one of these")
    return SHORT_NAMES[name]


def torch_dtype(short: str) -> torch.dtype:
    return getattr(torch, TORCH_NAMES[short])


@dataclass
class FxReader:
    """Collects inputs and ops of one fx graph. `values` maps a node to value name(s) or a size.

    promote: every float becomes float64 (see capture). joint: the graph is forward and backward.
    random: names of values that their ops draw, otherwise than dropout does. step: of how many
    tokens a row has a multiple; symbols has symbol_of it for it. sizes: ours, by torch's
    expressions.
    """

    promote: bool = False
    joint: bool = False
    step: int = 1
    symbols: dict = field(default_factory=dict)
    sizes: dict = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    values: dict[Node, Any] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: set(_OF_THE_LOSS))
    random: set[str] = field(default_factory=set)

    def value_name(self, node: Node) -> str:
        """Module path and op name."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = stack[-1][0] if stack else ""
        path = path.replace("L['self'].", "").removeprefix("module.").removeprefix("module")
        base = node.target._schema.name.partition("::")[2]  # type: ignore[union-attr]
        return f"{path}.{base}" if path else base

    def fresh(self, name: str) -> str:
        """A name that no value has yet, nor has where dots become underscores."""
        name = re.sub(r"[^\w.]", "_", name.removeprefix("module."), flags=re.ASCII)
        candidate, count = name, 1
        while candidate.replace(".", "_") in self.taken:
            count += 1
            candidate = f"{name}_{count}"
        self.taken.add(candidate.replace(".", "_"))
        return candidate

    def where(self, node: Node) -> str:
        """The op of a node and its line, for messages."""
        return where(node)

    def _size(self, size: object) -> Size:
        if isinstance(size, torch.SymInt | torch.SymFloat):
            expr = size.node.expr
            if expr not in self.sizes:
                self.sizes[expr] = over_tokens(size_of(expr.subs(self.symbols)), self.step)
            return self.sizes[expr]
        return size if isinstance(size, float) else int(size)  # type: ignore[call-overload]

    def _number(self, node: Node, value: object) -> Size:
        """What is calculated from sizes."""
        try:
            return self._size(value)
        except ValueError as error:
            raise SizeError(
                f"{self.where(node)} takes the {error}, which no plan can write down; calculate "
                "with sizes by + - * / // % ** max and min alone"
            ) from None

    def value(self, tensor: Tensor, name: str) -> Value:
        return Value(name, self._dtype(tensor.dtype), tuple(self._size(s) for s in tensor.shape))

    def _dtype(self, dtype: torch.dtype) -> str:
        short = short_dtype(dtype)
        return "f64" if self.promote and short in FLOATS else short

    def call(self, node: Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt | torch.SymFloat | int | float):
            self.values[node] = self._number(node, value)
            return
        if isinstance(value, torch.SymBool):  # of an assertion about sizes, else refused in _attr
            self.values[node] = value
            return
        if node.target.__name__ == "getitem":  # type: ignore[union-attr]
            self.values[node] = self.values[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        if not hasattr(node.target, "_schema"):
            raise CaptureError(f"{self.where(node)} {NO_OP}")
        if writes(node):
            raise CaptureError(
                f"{self.where(node)} changes its operand in place; write it as an op that "
                "returns a new tensor"
            )
        if draws_of_its_own(node):
            raise own_draws(self.where(node))
        if value is None:  # assertions about sizes and metadata
            return
        if drawn := drawn_by(node):
            self.draw(node, value, drawn)
            return
        alias = _alias_of(node, self.promote, self.joint)
        if alias is not None:
            self.values[node] = self.values[alias]
            return
        self._op(node, value)

    def draw(self, node: Node, value: Tensor, drawn: Drawn) -> None:
        """Take in an op that draws at random."""
        raise CaptureError(f"{self.where(node)} draws at random where only gradients are made")

    def _op(self, node: Node, value: object) -> None:
        name = self.fresh(self.value_name(node))
        many = isinstance(value, tuple | list)
        parts = value if many else (value,)
        target = target_name(node.target)
        names = self._output_names(target, name, len(parts)) if many else [name]  # type: ignore[arg-type]
        outputs = tuple(self._output(t, n, node) for t, n in zip(parts, names, strict=True))  # type: ignore[call-overload]
        inputs, attrs = self._arguments(node)
        if target == CAST:
            inputs, attrs = inputs[:1], (("dtype", outputs[0].dtype),)
        self.ops.append(Op(target, inputs, outputs, attrs, source_of(node)))
        self.random.update(names if draws_otherwise(node) else ())
        self.values[node] = tuple(names) if many else name

    def _output(self, given: object, name: str, node: Node) -> Value:
        if isinstance(given, Tensor):
            _check_dtype(node, given)
            return self.value(given, name)
        if given is not None:
            raise CaptureError(
                f"{self.where(node)} returns a "
                f"{type(given).__name__} beside its tensors; only tensors can be planned"
            )
        return Value(name, "bool", ())  # absent; nobody reads it

    def _output_names(self, target: str, name: str, count: int) -> list[str]:
        """One name per output: by meaning for semantic ops, by number elsewhere."""
        suffixes = named(target).output_names or tuple(map(str, range(count)))
        return [self.fresh(f"{name}_{suffix}") for suffix in suffixes]

    def _arguments(self, node: Node) -> tuple[tuple[str, ...], tuple[tuple[str, Attr], ...]]:
        schema = node.target._schema  # type: ignore[union-attr]
        given = dict(zip((a.name for a in schema.arguments), node.args, strict=False))
        given.update(node.kwargs)
        if not named(target_name(node.target)).registered:
            return self._call_arguments(node, given)
        inputs: list[str] = []
        attrs: list[tuple[str, Attr]] = []
        for argument in schema.arguments:
            if argument.name not in given or argument.name in _DEVICE_ARGUMENTS:
                continue
            self._argument(argument, given[argument.name], inputs, attrs)
        self._refuse_rows(node, attrs)
        while inputs and not inputs[-1]:
            inputs.pop()
        return tuple(inputs), tuple(attrs)

    def _call_arguments(
        self, node: Node, given: dict[str, Any]
    ) -> tuple[tuple[str, ...], tuple[tuple[str, Attr], ...]]:
        """Operands and attributes of an op that nobody registered."""
        record, schema = CallRecord(self.values), node.target._schema  # type: ignore[union-attr]
        for argument in schema.arguments:
            if argument.name not in given or argument.name in _DEVICE_ARGUMENTS:
                record.positional = False
            elif not record.operands(argument, given[argument.name]):
                value = self._attr(given[argument.name])
                if not _is_default(argument, value):
                    record.attribute(argument.name, given[argument.name], value)
        self._refuse_rows(node, record.attrs)
        if any(a.name == "dtype" for a in schema.arguments) and not record.inputs:
            made = node.meta["val"].dtype  # else the default of whoever calls it
            record.attrs = [a for a in record.attrs if a[0] != "dtype"]
            record.attribute("dtype", made, self._attr(made))
        return tuple(record.inputs), (*record.attrs, *record.notes(node))

    def _refuse_rows(self, node: Node, attrs: Attrs) -> None:
        """Refuse to calculate with the number of rows: a plan gives each call a part of them."""
        numbers = {a.name for a in node.target._schema.arguments if _is_number(a)}  # type: ignore[union-attr]
        for name, value in attrs:
            counts = name in numbers - _COUNTS and is_symbolic(value) and value.has(B)
            if counts and node.users:
                raise CaptureError(
                    f"{self.where(node)} calculates with {format_size(value)}, in which B is how "
                    "many rows a batch has; a plan computes some rows at a time, so what a row "
                    "gives may not depend on it"
                )

    def _argument(self, argument: Any, given: Any, inputs: list[str], attrs: list) -> None:
        if isinstance(given, Node) and isinstance(self.values[given], str):
            inputs.append(self.values[given])
        elif given is None and "Tensor" in str(argument.type):
            inputs.append("")
        elif isinstance(given, list | tuple) and "Tensor" in str(argument.type):
            inputs.extend(self.values[n] for n in given)
            attrs.append((argument.name, len(given)))
        else:
            value = self._attr(given)
            if not _is_default(argument, value):
                attrs.append((argument.name, value))

    def _attr(self, given: object) -> Attr:
        if isinstance(given, Node):
            if isinstance(self.values[given], torch.SymBool):
                raise CaptureError(
                    f"{self.where(given)} compares sizes and calculates with the answer; a plan "
                    "holds numbers alone, so decide with torch.where on tensors"
                )
            return self.values[given]
        if isinstance(given, torch.SymInt | torch.SymFloat):
            return self._size(given)
        if isinstance(given, list | tuple):
            return tuple(self._attr(g) for g in given)
        if isinstance(given, torch.dtype):
            return self._dtype(given)
        return given


def _is_number(argument: Any) -> bool:
    """Whether an argument is one that tensors are calculated with, where it is no tensor itself."""
    return any(word in str(argument.type) for word in ("number", "Tensor"))


def _is_default(argument: Any, value: Attr) -> bool:
    return argument.has_default_value() and value == argument.default_value


_DEVICE_ARGUMENTS = ("device", "layout", "pin_memory", "memory_format")
_COUNTS = {"start", "end", "step"}  # of what counts rows, and says nothing about their values


def check_dtypes(graph: Graph) -> None:
    """Raise CaptureError for an op that makes a tensor of a dtype that no plan has."""
    for node in (n for n in graph.nodes if n.op == "call_function"):
        made = node.meta.get("val")
        for value in made if isinstance(made, tuple | list) else (made,):
            if isinstance(value, Tensor):
                _check_dtype(node, value)


def check_sizes(module: GraphModule) -> None:
    """Raise CaptureError for an op whose results have sizes that values decide, also in regions."""
    regions = [m for m in module.modules() if isinstance(m, GraphModule)]
    for node in (n for region in reversed(regions) for n in region.graph.nodes):
        if node.op == "call_function" and free_unbacked_symbols(node.meta.get("val")):
            raise CaptureError(
                f"{where(node)} makes sizes or numbers of the values of a tensor, as a boolean "
                "index, nonzero or item does; a plan knows every size beforehand, so compute on "
                "all elements and choose by torch.where"
            )


def _check_dtype(node: Node, made: Tensor) -> None:
    if str(made.dtype).removeprefix("torch.") not in SHORT_NAMES:
        way = "; write it in real and imaginary parts" if made.is_complex() else ""
        raise CaptureError(
            f"{where(node)} makes a tensor of {made.dtype}; a plan knows "
            f"{', '.join(SHORT_NAMES)}{way}"
        )


def _alias_of(node: Node, promote: bool, joint: bool) -> Node | None:
    """The node this one equals: copies, casts to the same dtype, slices and expands of nothing."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or not isinstance(node.meta["val"], Tensor):
        return None
    asked = named(target_name(node.target))
    before, after = source.meta["val"], node.meta["val"]
    if not isinstance(before, Tensor):
        return None
    same = {
        "never": False,
        "always": True,
        "same dtype": _same_dtype(before.dtype, after.dtype, promote),
        "same shape": sizes_of(before) == sizes_of(after),
        "in a joint": joint,
    }
    return source if same[asked.vanishes] else None


def _same_dtype(before: torch.dtype, after: torch.dtype, promote: bool) -> bool:
    return before == after or (promote and before.is_floating_point and after.is_floating_point)
