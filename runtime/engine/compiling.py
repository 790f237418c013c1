"""torch.compile for emitted functions, and whether this machine can."""

import os
import shutil
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch

from ..metrics.progress import Progress
from .inductor import cache_counts, compile_whole


def missing_toolchain(device: torch.device) -> str | None:
    """Name what compiling lacks on this machine, or None."""
    compilers = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    if not any(name and shutil.which(name) for name in compilers):
        return "a C++ compiler (g++ or clang++)"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        return f"Python's headers ({header})"
    if device.type == "cuda" and importable("triton") is False:
        return "triton"
    return None


def importable(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


class Compiler:
    """torch.compile for emitted functions: each whole, for the shapes it was emitted for.

    say: is told which function torch cannot compile; that one runs as it stands. Without it torch's
    error is raised. stream: where the progress of compiling is drawn, None for nowhere. seconds:
    what the first calls of functions took so far, which compile them.
    """

    def __init__(
        self, say: Callable[[str], None] | None = None, stream: TextIO | None = None
    ) -> None:
        self.say, self.stream = say, stream
        self.wrapped, self.compiled, self.seconds = 0, 0, 0.0
        self._bar: Progress | None = None

    def __call__(self, function: Callable) -> Callable:
        """Return the function compiled when it is first called."""
        self.wrapped += 1
        chosen: Callable | None = None

        def call(*arguments: Any) -> Any:
            nonlocal chosen
            if chosen is not None:
                return chosen(*arguments)
            chosen, values = self._first(function, arguments)
            return values

        return call

    def end(self) -> str:
        """Clear the progress; return what to say of the functions compiled since the last call, ""
        for none."""
        if self._bar is not None:
            self._bar.clear()
        self._bar, count, seconds = None, self.compiled, self.seconds
        self.wrapped, self.compiled, self.seconds = self.wrapped - count, 0, 0.0
        if not count:
            return ""
        found, made = cache_counts()
        graphs = f"{made} graphs new, {found} from torch's cache"
        return f"compiled {count} functions in {seconds:.1f} s: {graphs}"

    def _first(self, function: Callable, arguments: tuple) -> tuple[Callable, Any]:
        """Call a function for the first time; return what is called from now on, and its values."""
        self._draw(getattr(function, "__name__", "a function"))
        started = time.perf_counter()
        chosen = compile_whole(function)
        try:
            values = chosen(*arguments)
        except Exception as error:
            if self.say is None or not _is_of_compilation(error):
                raise
            self.say(_why_not(function, error))
            chosen, values = function, function(*arguments)
        self.compiled += 1
        self.seconds += time.perf_counter() - started
        return chosen, values

    def _draw(self, name: str) -> None:
        # The first function waits for what is imported once: the pace is that of the others.
        if self.stream is not None and (self._bar is None or self.compiled == 1):
            begins = self._bar is None
            self._bar = Progress("compile", self.wrapped, self.compiled, self.stream)
            if begins:
                self._bar.begin(f"{self.wrapped} functions; the first takes the longest")
        if self._bar is not None:
            self._bar.at(self.compiled, name)


def _why_not(function: Callable, error: Exception) -> str:
    reason = " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__
    name = getattr(function, "__name__", "a function")
    return f"torch.compile fails on {name}: {reason}; it runs uncompiled, which is slower"


def _is_of_compilation(error: Exception) -> bool:
    """Whether torch.compile raised it, in tracing or by its backend; imported by then."""
    return isinstance(error, torch._dynamo.exc.TorchDynamoException)
