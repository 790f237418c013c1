"""Rows of a multiple of some number of tokens, a step: how S is written there, and which steps a
forward may have.

torch then has a symbol for the number of steps, and S as a multiple of it; so what divides S by the
step is whole to it.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node

from ..sizes import S, Size, simplify_size
from .symbolic import expression_of

# The number of steps of a row, while sizes are read from torch.
_STEPS = sympy.Symbol("N", integer=True, positive=True)
_LONGEST = 64  # tokens of a step
# Steps of a row that is tried: primes, with which no size of a model is equal by chance.
_PRIMES = (13, 11, 5, 3)
# Numbers by which an error says that S is divided.
_DIVISORS = re.compile(r"(?:%|//| into)\s*(\d+)|Mod\([^,]*,\s*(\d+)\)|floor\([^)]*/(\d+)\)")


def symbol_of(step: int) -> sympy.Symbol:
    """Return the symbol that sizes are read over, where rows have multiples of `step` tokens."""
    return S if step == 1 else _STEPS


def over_tokens(size: Size, step: int) -> Size:
    """Return a size that was read over that symbol, over S."""
    if step == 1 or not isinstance(size, sympy.Expr):
        return size
    return simplify_size(size.subs(_STEPS, S / step))


def steps_of(length: Any, step: int) -> sympy.Basic:
    """Return torch's symbol for the number of steps of a row.

    length: of a row, as torch has it: a number stays one. What is no multiple of one symbol by
    `step` is returned as it is.
    """
    expression = expression_of(length)
    steps = expression / step
    return steps if steps.is_Symbol else expression


def read_off_tokens(graph: Graph, tokens: Node) -> None:
    """Let a graph read the length of a row off its tokens; torch may read it off later values."""
    length = expression_of(tokens.meta["val"].shape[1])
    for node in graph.nodes:
        reads = node.target is torch.ops.aten.sym_size.int
        if reads and expression_of(node.meta["val"]) == length:
            node.args = (tokens, 1)


@dataclass(frozen=True)
class Way:
    """How an export takes S.

    step: of how many tokens a row has a multiple. tried: tokens of the row that is traced. numbers:
    whether functions that want a number, such as int, take a size.
    """

    step: int = 1
    tried: int = _PRIMES[0]
    numbers: bool = False


def following(way: Way, said: str, seq: int, runs: Callable[[int], bool]) -> Way | None:
    """Return the way to try where one was refused, None where there is none.

    said: why it was. seq: a length that the forward shall take, so that steps divide it. runs: of
    tokens of a row, whether the forward runs on them.
    """
    for step in _steps_beside(way, said, seq, runs):
        tried = [p * step for p in _PRIMES if runs(p * step)]
        if len(tried) > 1:  # one may be a multiple of a longer step by chance
            return replace(way, step=step, tried=tried[0])
    return None if way.numbers else replace(way, numbers=True)


def tried_beside(seq: int, step: int) -> tuple[int, ...]:
    """Return the tokens of rows of a prime number of steps, next to `seq` below and above."""
    count = seq // step
    below = (sympy.prevprime(count + 1),) if count > 1 else ()
    return tuple(n * step for n in (*below, sympy.nextprime(count)))


def _steps_beside(way: Way, said: str, seq: int, runs: Callable[[int], bool]) -> Iterator[int]:
    """Yield longer steps: that which an error names, all where the forward does not run at all."""
    steps = [n for n in range(way.step + 1, min(seq, _LONGEST) + 1) if seq % n == 0 == n % way.step]
    if not runs(way.tried):
        yield from steps
        return
    named = {int(n) for found in _DIVISORS.findall(said) for n in found if n}
    step = math.lcm(way.step, *(n for n in named if n and seq % n == 0))
    if step in steps:
        yield step
