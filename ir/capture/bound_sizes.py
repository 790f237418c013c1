"""Which call of a forward binds a size of the tokens to a number; asked where an export fails."""

import sys
from collections.abc import Callable
from typing import Any

import sympy
from torch import Tensor, nn
from torch.export import export
from torch.overrides import TorchFunctionMode

from .lines import short_line


class _Watch(TorchFunctionMode):
    """Finds the first function after which a size must equal something."""

    def __init__(self, guards: Callable[[], list]) -> None:
        super().__init__()
        self.guards, self.found = guards, ""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        count = len(self.guards())
        made = func(*args, **(kwargs or {}))
        if not self.found and any(isinstance(g.expr, sympy.Eq) for g in self.guards()[count:]):
            self.found = f"{getattr(func, '__name__', func)}{_parts(args[1:])}{_place()}"
        return made


def _parts(given: tuple) -> str:
    """The number that a call gives behind its tensor, into which it cuts that."""
    return f" into {given[0]}" if given and type(given[0]) is int else ""


def _place() -> str:
    frame = sys._getframe(2)
    while frame.f_back and not short_line(frame.f_code.co_filename, frame.f_lineno):
        frame = frame.f_back
    return f" at {short_line(frame.f_code.co_filename, frame.f_lineno) or 'an unknown line'}"


class _Watched(nn.Module):
    """Tells what was found: export takes back what a forward assigns or keeps in lists."""

    def __init__(self, module: nn.Module, tell: Callable[[str], None]) -> None:
        super().__init__()
        self.module, self.tell = module, tell

    def forward(self, *given: Tensor) -> Tensor:
        size: Any = given[0].shape[1]
        with _Watch(lambda: size.node.shape_env.guards) as watch:
            made = self.module(*given)
        self.tell(watch.found)
        return made


def binding_call(module: nn.Module, given: tuple[Tensor, ...], sizes: dict[str, Any]) -> str:
    """Return the function and its line, "" where none is found. sizes: as export takes them."""
    found: list[str] = []
    try:
        export(_Watched(module, found.append), given, dynamic_shapes=sizes, strict=False)
    except Exception:  # it has failed before, and is run again to be looked at
        return next(filter(None, found), "")
    return ""
