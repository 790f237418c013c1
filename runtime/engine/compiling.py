"""torch.compile for emitted functions, and whether this machine can."""

import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

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


def compiler() -> Callable[[Callable], Callable]:
    """Each emitted function compiled whole, for the shapes it was emitted for."""
    return lambda function: torch.compile(function, fullgraph=True, dynamic=False)
