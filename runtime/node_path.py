"""Paths that each node reads in its own way: with variables of its environment, or with ~."""

import os
import re
from pathlib import Path

from .host import host_name

# A variable whose value names another.
_DEPTH = 4


class NodePathError(ValueError):
    """A path that names nothing on this node."""


def is_of_a_node(text: str) -> bool:
    """Tell whether a path is read on the node that it is for."""
    return "$" in text or text.startswith("~")


def expanded(option: str, text: str) -> Path:
    """Return the path that an option's text names on this node. Raises NodePathError for a variable
    that is not set here, and for variables that give no absolute path."""
    if not is_of_a_node(text):
        return Path(text)
    found = _substituted(text)
    unset = re.search(r"\$\{?(\w*)", found)
    if unset is not None:
        raise NodePathError(
            f"{option} {text}: {unset[1] or '$'} is not set on {host_name()}; set it there, or "
            "give a path that every node has"
        )
    if not os.path.isabs(found):
        raise NodePathError(
            f"{option} {text} is {found!r} on {host_name()}, not a path from / on; give one"
        )
    return Path(found)


def _substituted(text: str) -> str:
    for _ in range(_DEPTH):
        text = os.path.expandvars(os.path.expanduser(text))
    return text
