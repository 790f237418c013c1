"""Options of a run as words of a command line."""

from pathlib import Path

from ..data import absolute
from ..node_path import is_of_a_node
from ..training.options import flag


def option_words(options: dict[str, object]) -> list[str]:
    """Return options as command-line words; paths are absolute, as a program runs in its folder."""
    arguments = []
    for name, value in options.items():
        if value is True:
            arguments.append(flag(name))
        elif isinstance(value, tuple | list):
            arguments += [word for item in value for word in (flag(name), str(item))]
        elif value is not False and value is not None:
            arguments += [flag(name), _absolute(name, str(value))]
    return arguments


def _absolute(name: str, value: str) -> str:
    if name == "fast_dir" and is_of_a_node(value):
        return value
    folder = name in ("resume", "weights", "fast_dir") and value not in ("", "auto")
    if name == "out" or folder:
        return str(Path(value).resolve())
    return absolute(value) if name in ("data", "eval_data") else value
