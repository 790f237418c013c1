"""Weighted mixtures of corpora: sample k belongs to one source, by a rule that needs no memory.

The rule is fair scheduling with deadlines (Baruah, Cohen, Plaxton, Varvel, Algorithmica 15, 1996,
"Proportionate progress", for one processor): the j-th sample of a source of share w may come from
place floor(j / w) on and must come before ceil((j + 1) / w); of those that may come the earliest
deadline goes first. At every prefix each source is then less than one sample off its share.

Shares are whole numbers over a common period, so the pattern repeats and a table of one period
answers for every k. Weights whose period would be longer than 65,536 are rounded to it.
"""

import heapq
import math
import tomllib
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from .corpus import Corpus, check_tokenizers, joined_identity
from .errors import DataError
from .samples import Shuffled

PERIOD = 2**16
_KINDS = ("demo", "shards", "file", "random", "fixed")
_NO_PARTS = {
    "py": "rows of your own code are whole, and a mixture draws windows of corpora",
    "mix": "it is a mixture, whose sources may be named here themselves",
    "hf-stream": "a stream has no windows by number; meshwright data tokenize writes it as shards",
}


@dataclass(frozen=True)
class Source:
    """data: as --data takes it. weight: exact."""

    data: str
    weight: Fraction


class Mixture:
    """Samples of several corpora in proportion to `shares`; each has its own epochs and order.

    Raises DataError where tokenizers differ or a corpus is too short.
    """

    def __init__(
        self, name: str, corpora: list[Corpus], shares: list[int], *, width: int, seed: int
    ) -> None:
        self.tokenizer = check_tokenizers(corpora)
        self.name, self.width, self.shares = name, width, np.array(shares)
        self.vocab = max(corpus.vocab for corpus in corpora)
        self.identity = joined_identity(tuple(corpora), tuple(shares))
        # A corpus that is named twice is shuffled in two ways.
        self.parts = [
            Shuffled(corpus, width=width, seed=seed + 1_000_003 * index)
            for index, corpus in enumerate(corpora)
        ]
        self.source, self.turn = pattern(shares)

    def assign(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(source, index among that source's samples) of each sample, int64 [n]."""
        periods, places = np.divmod(samples, len(self.source))
        sources = self.source[places]
        return sources, periods * self.shares[sources] + self.turn[places]

    def read(self, samples: np.ndarray) -> np.ndarray:
        sources, indices = self.assign(samples)
        rows = np.empty((len(samples), self.width), np.int64)
        for source, part in enumerate(self.parts):
            mine = sources == source
            rows[mine] = part.read(indices[mine])
        return rows


def pattern(shares: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each place of one period its source, and how many that source had before.

    shares: samples of each source in a period, at least 1.
    """
    total = sum(shares)
    sources, turns = np.empty(total, np.int64), np.empty(total, np.int64)
    waiting = [(0, source, 0) for source in range(len(shares))]  # from place, source, turn
    ready: list[tuple[int, int, int]] = []  # deadline, source, turn
    for place in range(total):
        while waiting and waiting[0][0] <= place:
            _, source, turn = heapq.heappop(waiting)
            deadline = -(-(turn + 1) * total // shares[source])
            heapq.heappush(ready, (deadline, source, turn))
        _, source, turn = heapq.heappop(ready)
        sources[place], turns[place] = source, turn
        heapq.heappush(waiting, ((turn + 1) * total // shares[source], source, turn + 1))
    return sources, turns


def shares_of(sources: list[Source]) -> list[int]:
    """Whole shares in the proportion of the weights, exact where a period of 65,536 allows it.

    Raises DataError for a weight too small to get a share.
    """
    unit = math.lcm(*(source.weight.denominator for source in sources))
    exact = [int(source.weight * unit) for source in sources]
    exact = [number // math.gcd(*exact) for number in exact]
    if sum(exact) <= PERIOD:
        return exact
    ideal = [Fraction(number * PERIOD, sum(exact)) for number in exact]
    shares = [math.floor(number) for number in ideal]
    behind = sorted(range(len(ideal)), key=lambda i: (shares[i] - ideal[i], i))
    for index in behind[: PERIOD - sum(shares)]:
        shares[index] += 1
    for source, share in zip(sources, shares, strict=True):
        if not share:
            raise DataError(
                f"weight {float(source.weight):g} of {source.data} is less than 1 of {PERIOD} "
                "samples; give it more, or leave the source out"
            )
    return shares


def read_mixture(path: Path) -> list[Source]:
    """The [[source]] tables of a TOML file; paths are relative to the file.

    data: as --data takes it (or path: a folder of shards). weight: a number above 0.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path} is not TOML: {error}") from None
    rows = tables.get("source")
    if set(tables) != {"source"} or not isinstance(rows, list) or not rows:
        raise _no_sources(path, tables)
    return [_source(path, number, row) for number, row in enumerate(rows, 1)]


def _no_sources(path: Path, tables: dict[str, Any]) -> DataError:
    return DataError(
        f"{path} holds {', '.join(tables) or 'nothing'}; write [[source]] tables, each with "
        'data = "shards:DIR" and weight = 1.0'
    )


def _source(path: Path, number: int, row: object) -> Source:
    where = f"{path}: source {number}"
    known = {"data", "path", "weight"}
    if not isinstance(row, dict) or set(row) - known or len({"data", "path"} & set(row)) != 1:
        keys = sorted(row) if isinstance(row, dict) else [row]
        raise DataError(f"{where} has {keys}; give data (or path, of shards) and weight")
    weight = row.get("weight", 1.0)
    number_like = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number_like or not (0 < weight < math.inf):
        raise DataError(f"{where}: weight is {weight!r}, expected a number above 0")
    data = row.get("data", f"shards:{row.get('path')}")
    _check_windows(where, str(data))
    # As written: 0.1 is a tenth, not the binary number next to it.
    return Source(str(data), Fraction(str(weight)))


def _check_windows(where: str, data: str) -> None:
    """Raise DataError for data that no mixture draws windows of."""
    kind = data.partition(":")[0]
    if kind not in _KINDS:
        why = f"cannot be part of a mixture: {_NO_PARTS[kind]}" if kind in _NO_PARTS else "unknown"
        raise DataError(
            f"{where}: data {data}: {why}; a mixture takes demo, shards:DIR, file:PATH, "
            "random:VOCAB and fixed:VOCAB"
        )
