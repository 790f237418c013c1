"""Python objects by the name that another process imports them by: `py:module:name`."""

import importlib
import sys
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from meshwright.ir.errors import MeshwrightError
from meshwright.runtime.own_code import PREFIX


def spec_of(given: object) -> str:
    """Return `py:module:name` of a class or function; a text as it is.

    Each rank is a process of its own, which imports the object by that name; of the script that
    runs the name is its file's. Raises MeshwrightError for what no other process can import: a
    lambda, a function within a function, an instance, or what was typed into a console.
    """
    if isinstance(given, str):
        return given
    name, module = getattr(given, "__qualname__", ""), getattr(given, "__module__", "")
    if not name or not module:
        raise MeshwrightError(
            f"a {type(given).__name__} cannot be carried to the ranks, which are processes of "
            "their own: give a class, a function, or py:module:name of either"
        )
    if "<" in name:
        raise MeshwrightError(
            f"{name} of {module} cannot be imported by the ranks, which are processes of their "
            "own: define it at the top of a file"
        )
    file_name = _main_file_name() if module == "__main__" else module
    _check_found(given, module, name)
    return f"{PREFIX}{file_name}:{name}"


def specs_of(given: Iterable[object]) -> tuple[str, ...]:
    """Return `py:module:name` of each."""
    return tuple(map(spec_of, given))


def _main_file_name() -> str:
    """The name by which the script that runs is imported."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        return str(spec.name)
    path = getattr(main, "__file__", None)
    if path is None or not Path(path).stem.isidentifier():
        raise MeshwrightError(
            f"what is defined in {path or 'a console or a notebook'} cannot be imported by the "
            "ranks, which are processes of their own: put it into a module, a .py file of its own"
        )
    return Path(path).stem


def _check_found(given: object, module: str, name: str) -> None:
    """Raise MeshwrightError where the name leads to something else."""
    try:
        found: Any = attrgetter(name)(_module(module))
    except (ImportError, AttributeError):
        found = None
    if found is not given:
        raise MeshwrightError(
            f"{module} has no {name!r} that is this {type(given).__name__}, so that the ranks "
            "cannot import it: define it at the top of a file, under its own name"
        )


def _module(name: str) -> ModuleType:
    return sys.modules.get(name) or importlib.import_module(name)
