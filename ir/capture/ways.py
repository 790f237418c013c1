"""The way that a forward takes through the code of its user: what an export has to take, too.

A forward may ask whether it is traced, or try what tracing does not allow. Then a graph holds
another way than a training step takes; where the two compute the same on most tokens or lengths, no
value shows it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from torch import nn

from ..traced import Ways
from .lines import of_user

_TOOL = 4  # of sys.monitoring, which gives it to nobody else
# What these call, such as a kernel or what gives its shapes, is not the forward's own way.
_OF_OPS = ("/torch/_library/", "/torch/_higher_order_ops/", "/torch/library.py")


class Recorder:
    """Collects the instructions of the user's functions that run, with their lines."""

    def __init__(self) -> None:
        self._seen: dict[CodeType, set[tuple[int, int]]] = {}

    @property
    def ways(self) -> Ways:
        found: dict[str, set[tuple[int, int]]] = {}
        for code, ran in self._seen.items():
            file = "/".join(code.co_filename.split(os.sep)[-2:])
            name = f"{code.co_name} of {file}:{code.co_firstlineno}"
            found[name] = found.get(name, set()) | ran
        return tuple((name, tuple(sorted(ran))) for name, ran in sorted(found.items()))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs. A debugger's own trace is put back behind it."""
        how = self._monitored() if hasattr(sys, "monitoring") else self._traced()
        with how:
            yield

    @contextmanager
    def _traced(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        if not of_user(frame.f_code.co_filename) or _within_op(frame):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        seen = self._seen.setdefault(frame.f_code, set())

        def ran(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode":
                seen.add((frame.f_lasti, frame.f_lineno or 0))
            return ran

        return ran

    @contextmanager
    def _monitored(self) -> Iterator[None]:
        """The same from Python 3.12 on, whose traces leave out the first run of a function."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]

        def ran(code: CodeType, offset: int) -> Any:
            if not of_user(code.co_filename):
                return monitoring.DISABLE
            frame = sys._getframe(1)
            if not _within_op(frame):
                self._seen.setdefault(code, set()).add((offset, frame.f_lineno or 0))
            return None

        monitoring.use_tool_id(_TOOL, "meshwright")
        monitoring.restart_events()
        monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, ran)
        monitoring.set_events(_TOOL, monitoring.events.INSTRUCTION)
        try:
            yield
        finally:
            monitoring.set_events(_TOOL, 0)
            monitoring.free_tool_id(_TOOL)


def _within_op(frame: FrameType | None) -> bool:
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in _OF_OPS):
            return True
        frame = frame.f_back
    return False


def has_code_of_user(module: nn.Module) -> bool:
    """Return whether a class of a module, or one that it derives of, is in a file of the user's."""
    kinds = {base for part in module.modules() for base in type(part).__mro__}
    return any(of_user(_file_of(kind)) for kind in kinds)


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<unknown>"


def parted(traced: Ways, called: Ways) -> str:
    """Return where two ways part: the first line that only one of them runs, in a function that
    both run, as `forward of model/block.py:12, line 15`; "" where they are the same."""
    own = dict(called)
    for name, ran in traced:
        if apart := set(ran) ^ set(own.get(name, ran)):
            return f"{name}, line {min(apart)[1]}"
    return ""
