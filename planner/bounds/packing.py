"""Whether units can lie on the ranks of a pipeline within memory, in a fraction of a millisecond.

Of each rank one moment counts. A unit takes what it stores there, and what is kept of it for the
micro-batches in flight, at least: on the stage and under the option where that is least. Ranks
count by weights, so that the fullest rank of a mean unit does not hide the others. Where every unit
lies on the rank where it weighs least, and all together weigh more than what is free on all ranks,
no cuts and options fit: a linear program of the same rows (lp.py) has no solution.
"""

import numpy as np
from numpy.typing import NDArray

from ..pipeline.peak_moments import Floats, MomentArrays
from .lp import TOLERANCE, Kind, Pipeline


def may_pack(pipeline: Pipeline, at: MomentArrays) -> bool:
    """Return False where no cuts and options fit the limit; True proves nothing."""
    first, last, *usual = pipeline.kinds
    if pipeline.limit_bytes is None or not usual:
        return True
    free = (1 + TOLERANCE) * pipeline.limit_bytes - _fixed(pipeline, at)
    each = np.array([_least(kind, at).min(axis=1) for kind in usual])
    counts = np.array([kind.count for kind in usual], dtype=float)
    mean = counts @ each / counts.sum()
    if mean.min() <= 0 or free.min() <= 0:
        return bool(free.min() > 0)
    chosen = _fullest(mean / free, at)
    weights = 1 / mean[chosen]
    need = counts @ (each[:, chosen] * weights).min(axis=1)
    for kind, stage in ((first, 0), (last, pipeline.num_stages - 1)):
        on = at.stages[chosen] == stage
        need += float((_least(kind, at)[chosen] * weights[:, None])[on].min())
    return bool(need <= weights @ free[chosen])


def _fixed(pipeline: Pipeline, at: MomentArrays) -> Floats:
    """Return bytes of each moment that units have no part in."""
    last, elsewhere = pipeline.passing_bytes
    fixed: Floats = np.array(pipeline.fixed_bytes)[at.rank] + np.where(at.ends, last, elsewhere)
    return fixed


def _least(kind: Kind, at: MomentArrays) -> Floats:
    """Return the bytes that a unit takes at least on each stage, [moment, chunk]."""
    kept, handed = np.array(kind.kept), np.array(kind.handed)
    least: Floats = (at.held * kept + at.waiting * handed).min(axis=2) + kind.stored_bytes
    return least


def _fullest(filled: Floats, at: MomentArrays) -> NDArray[np.int64]:
    """Return of each rank the moment that a mean unit fills the most of."""
    order = np.lexsort((-filled, at.rank))
    _, first = np.unique(at.rank[order], return_index=True)
    chosen: NDArray[np.int64] = order[first]
    return chosen
