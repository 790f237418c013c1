"""The compute actions of a rank as numbers, for walks through thousands of them."""

from dataclasses import dataclass

import numpy as np

from meshwright.ir.schedule import COMPUTE, Action, Schedule


@dataclass(frozen=True)
class Computing:
    """The compute actions of a rank in order. ways: a stage and kind of action each; numbers: by
    action, which of these it is."""

    ways: tuple[tuple[int, str], ...]
    numbers: np.ndarray


def computing_of(actions: tuple[Action, ...]) -> Computing:
    """Return the compute actions of a rank."""
    found: dict[tuple[int, str], int] = {}
    pairs = ((a.stage, a.kind) for a in actions if a.kind in COMPUTE)
    numbers = [found.setdefault(pair, len(found)) for pair in pairs]
    return Computing(tuple(found), np.array(numbers, dtype=np.intp))


def computing_by_rank(schedule: Schedule) -> tuple[Computing, ...]:
    """Return the compute actions of every rank."""
    return tuple(map(computing_of, schedule))
