"""torch.compile for emitted functions, and whether this machine can."""

import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


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


def compiler(say: Callable[[str], None] | None = None) -> Callable[[Callable], Callable]:
    """Each emitted function compiled whole, for the shapes it was emitted for.

    say: is told which function torch cannot compile; that one runs as it stands. Without it torch's
    error is raised.
    """

    def compiled(function: Callable) -> Callable:
        fast = torch.compile(function, fullgraph=True, dynamic=False)
        return fast if say is None else _or_itself(fast, function, say)

    return compiled


def _or_itself(fast: Callable, function: Callable, say: Callable[[str], None]) -> Callable:
    """Call `fast`, from a failure of its compilation on `function`; neither ran before it."""
    chosen = fast

    def call(*arguments: Any) -> Any:
        nonlocal chosen
        try:
            return chosen(*arguments)
        except Exception as error:
            if chosen is function or not _is_of_compilation(error):
                raise
            reason = " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__
            name = getattr(function, "__name__", "a function")
            say(f"torch.compile fails on {name}: {reason}; it runs uncompiled, which is slower")
            chosen = function
            return function(*arguments)

    return call


def _is_of_compilation(error: Exception) -> bool:
    """Whether torch.compile raised it, in tracing or by its backend; imported by then."""
    return isinstance(error, torch._dynamo.exc.TorchDynamoException)
