"""A user's own code by its name, `py:module:name`, in whichever process asks for it."""

import difflib
import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any

# Folders of the user's modules, where a launcher says them: a program runs in its own folder.
IMPORT_PATH = "MESHWRIGHT_IMPORT_PATH"
PREFIX = "py:"


class OwnCodeError(ValueError):
    """A name that leads to nothing of its kind, or code that fails when it is loaded."""


def look_where_told() -> None:
    """Let imports look, last, in the folders that a launcher names, and in the current one."""
    given = [*os.environ.get(IMPORT_PATH, "").split(os.pathsep), os.getcwd()]
    sys.path += [folder for folder in given if folder and folder not in sys.path]


def is_named(text: str) -> bool:
    """Tell whether a text is py:module:name."""
    return text.startswith(PREFIX) and text.count(":") == 2 and all(text.split(":"))


def load_named(spec: str, what: str) -> Any:
    """Return what `py:module:name` names; of a class an instance, made without arguments.

    what: the option that names it, for messages. Raises OwnCodeError where nothing is found there.
    """
    if not is_named(spec):
        raise OwnCodeError(f"{what} {spec}: write py:module:name")
    _, module_name, name = spec.split(":")
    where = f"{what} {spec}"
    found: Any = _imported(module_name, where)
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, vars(found), 1)
            hint = f"; did you mean {near[0]}" if near else ""
            raise OwnCodeError(f"{where}: {module_name} has no {name!r}{hint}")
        found = getattr(found, part)
    return _made(found, where) if isinstance(found, type) else found


def _imported(name: str, where: str) -> ModuleType:
    look_where_told()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise OwnCodeError(
            f"{where}: cannot import {name}: {said_of(error)}; it is looked for on "
            "PYTHONPATH and in the current folder"
        ) from error


def _made(kind: type, where: str) -> object:
    try:
        return kind()
    except (Exception, SystemExit) as error:
        raise OwnCodeError(f"{where}: {kind.__name__}() fails: {said_of(error)}") from error


def said_of(error: BaseException) -> str:
    """Return an error in a line, with the place of the innermost code that raised it."""
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {text}{_place_of(error)}"


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [f for f in frames if f.filename[0] != "<" and f.filename != importlib.__file__]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
