"""The classes of `transformers` that were checked against the law by `benchmarks/models.py`.

Each class was built from a tiny config and run in float64 on one device, dp=2, tp=2 and pp=2,
beside the stock class under autograd. The file of results comes with the package.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import ModelError

IMAGES = "images:"  # before the type of a model that was checked with images
RESULTS = Path(__file__).with_name("classes.json")


@dataclass(frozen=True)
class Checked:
    """A class of the library. result: equal on all four plans, refused, or why it was not checked.

    model_type: of an image-text model behind IMAGES. cut: share of the bytes of matmul weights that
    tp=2 cuts, None where tp=2 was not planned. said: the refusal, "" where there is none. date: of
    the run. pairs: whether it has an encoder.
    """

    model_type: str
    result: str
    cut: float | None
    said: str
    date: str
    pairs: bool = False

    @property
    def images(self) -> bool:
        """Return whether the class was checked with images."""
        return self.model_type.startswith(IMAGES)


@dataclass(frozen=True)
class Classes:
    """The classes checked. transformers, torch: versions."""

    transformers: str
    torch: str
    checked: tuple[Checked, ...]

    @property
    def dates(self) -> str:
        """Return the day of the runs, or the first and the last."""
        days = sorted({row.date for row in self.checked})
        return " to ".join(sorted({days[0], days[-1]}))

    @property
    def kinds(self) -> str:
        """Return how many classes of each kind were checked."""
        pairs = sum(row.pairs for row in self.checked)
        images = sum(row.images for row in self.checked)
        text = len(self.checked) - pairs - images
        words = [f"{text} decoders and {pairs} encoder-decoders of text"] if text else []
        return " and ".join([*words, *([f"{images} image-text models"] if images else [])])

    def part(self, images: bool) -> "Classes":
        """Return the classes that were checked with images, or those without."""
        return replace(self, checked=tuple(x for x in self.checked if x.images == images))

    def counts(self) -> dict[str, int]:
        """Return how many classes have each result, the most frequent first."""
        results = [row.result for row in self.checked]
        return {name: results.count(name) for name in sorted(set(results), key=results.count)[::-1]}

    def of(self, model_type: str) -> Checked:
        """Return the row of a class. Raises ModelError where it was not checked."""
        for row in self.checked:
            if row.model_type == model_type:
                return row
        raise ModelError(
            f"{model_type}: none of the {len(self.checked)} model types checked; check it with "
            f"python benchmarks/models.py {model_type}"
        )


def checked_classes(path: Path = RESULTS) -> Classes:
    """Return the classes that a file of results names, in alphabetical order."""
    data = json.loads(path.read_text(encoding="utf-8"))
    rows = [Checked(**row) for row in data.pop("classes")]
    return Classes(checked=tuple(sorted(rows, key=lambda row: row.model_type)), **data)
