"""What the lines of one emitted function are: its ops and units, and what stands for each value."""

from collections.abc import Collection, Sequence

from meshwright.ir.graph import Op
from meshwright.ir.ops.registry import definition

from .emitters import op_text
from .local import Locals, identifier
from .units import Unit

_COLUMNS = 96  # of a line in a function


class Lines:
    """Items to print, without those that their reader shows as well.

    An op whose text is its operand's name is no line, nor is a view that only the next line turns
    into another one: `x.reshape(B, S, 4, 8).transpose(1, 2)`.
    """

    def __init__(
        self,
        items: Sequence[Op | Unit],
        outputs: Collection[str],
        local: Locals,
        names: dict[str, str] | None = None,
        again: Collection[str] = (),
    ) -> None:
        """outputs: values that the function hands out. names: other than the values' own.

        again: first outputs of ops that another function has computed before.
        """
        self.local, self.again, self._texts = local, again, dict(names or {})
        self._outputs = frozenset(outputs)
        self._reads = [n for item in items for n in _operands(item)]
        self.items: list[Op | Unit] = []
        for item, after in zip(items, (*items[1:], None), strict=False):
            if isinstance(item, Unit) or not self._drop(item, after):
                self.items.append(item)

    @property
    def ops(self) -> list[Op]:
        return [item for item in self.items if isinstance(item, Op)]

    def name(self, name: str) -> str:
        """A value in the text of its readers."""
        return self._texts.get(name) or identifier(name)

    def text(self, op: Op, grad: str = "") -> str:
        return op_text(op, self.local, grad, self.name)

    def _drop(self, op: Op, after: Op | Unit | None) -> bool:
        if len(op.outputs) > 1 or len(op.inputs) != 1 or op.output.name in self._outputs:
            return False
        text = self.text(op)
        if text == self.name(op.inputs[0]) or self._continues(op, text, after):
            self._texts[op.output.name] = text
            return True
        return False

    def _continues(self, op: Op, text: str, after: Op | Unit | None) -> bool:
        """Whether the next line goes on from this view, and nothing else reads it."""
        if not isinstance(after, Op) or not (definition(op).free and definition(after).free):
            return False
        name = op.output.name
        if after.source != op.source or self._reads.count(name) > 1 or name not in after.inputs:
            return False
        chained = _is_method(text, self.name(op.inputs[0]))
        rest = self.text(after)
        if not chained or not _is_method(rest, self.name(name)):
            return False
        line = f"{self.name(after.output.name)} = {text}{rest.removeprefix(self.name(name))}"
        return len(line) <= _COLUMNS


def _is_method(text: str, operand: str) -> bool:
    return text.startswith(f"{operand}.")


def _operands(item: Op | Unit) -> tuple[str, ...]:
    return item.operands if isinstance(item, Unit) else item.inputs
