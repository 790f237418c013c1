"""The lines of the model that call an op, recorded with each node of an export.

torch records a hundred frames of each node, writes them all out, and keeps those of functions named
forward: an eighth of the time of an export.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.fx import Graph, Node

_ROOMS = "ir planner codegen runtime models proof api commands".split()
_NOT_USER = (
    *(str(Path(__file__).parents[2] / room) + os.sep for room in _ROOMS),
    sysconfig.get_paths()["stdlib"] + os.sep,
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_NOT_MODEL = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, __file__))


@contextmanager
def lines_of_model() -> Iterator[None]:
    """Give each new node of a graph, as its stack trace, the innermost line of the model, and the
    innermost line of a function named forward behind it.

    torch records no stack of a node that has one; tests/ir/test_lines.py says so.
    """
    plain, outside = Graph.create_node, sys._getframe(2)  # behind contextlib's own frame

    def create(self: Graph, *args: Any, **kwargs: Any) -> Node:
        node = plain(self, *args, **kwargs)
        if found := _lines(sys._getframe(1), outside):
            node.stack_trace = "\n".join(found)
        return node

    Graph.create_node = create  # type: ignore[method-assign]
    try:
        yield
    finally:
        Graph.create_node = plain  # type: ignore[method-assign]


def _lines(frame: FrameType | None, outside: FrameType) -> list[str]:
    """One line or two, as a traceback writes them; none outside of the model's forward."""
    found: list[str] = []
    while frame is not None and frame is not outside:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path[0] != "<" and of_model(path) and (not found or name == "forward"):
            found.append(f'File "{path}", line {frame.f_lineno}, in {name}')
            if name == "forward":
                break
        frame = frame.f_back
    return found


def source_of(node: Node) -> str:
    """`models/llama.py:31` of the forward that calls an op, by a helper perhaps."""
    found = lines_of(node)
    return short_line(*found[-1]) if found else ""


def line_of(node: Node) -> str:
    """`models/rotary.py:12` of the innermost line of the model that calls an op."""
    found = lines_of(node)
    return short_line(*found[0]) if found else ""


def lines_of(node: Node) -> list[tuple[str, int]]:
    """File and number of the lines that a node was recorded with, as lines_of_model says."""
    found = []
    for line in (node.meta.get("stack_trace") or "").splitlines():
        if (line := line.strip()).startswith("File "):
            path, _, rest = line.removeprefix('File "').partition('", line ')
            found.append((path, int(rest.partition(",")[0])))
    return found


def short_line(path: str, number: int) -> str:
    """Return `models/llama.py:31` of a line of a model; "" of one of torch or of this room."""
    if path.startswith(_NOT_MODEL):
        return ""
    return f"{'/'.join(path.split('/')[-2:])}:{number}"


@lru_cache(maxsize=4096)
def of_model(path: str) -> bool:
    """Return whether a file is none of torch's or of this room."""
    return bool(short_line(path, 0))


@lru_cache(maxsize=4096)
def of_user(path: str) -> bool:
    """Return whether a file is of the user's: none of torch's, Python's, an installed library's, or
    this package's. What a library asks of one row, such as whether to expand a value, the
    proof's run of one row has to show."""
    known = path.startswith(_NOT_USER) or any(folder in path for folder in _INSTALLED)
    return path[0] != "<" and of_model(path) and not known
