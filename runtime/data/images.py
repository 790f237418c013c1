"""Texts with an image each, which an image-text model is trained on.

    shards of texts, images.npy --images--> reader --batches--> pixels and places beside the tokens

Document k of the texts goes with image k. A row is a document, of which the first S + 1 ids count,
with the places of its image: as many tokens as the model has features of an image. They stand where
the document has the id that images.toml names, and before the text where it names none. What comes
next is the label of each token, none where that is of an image.
"""

import hashlib
import tomllib
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch

from .batches import Batch
from .corpus import Corpus
from .errors import DataError
from .numbered import Counted
from .pairs import Documents
from .permutation import hash_of
from .samples import IGNORED, check_length

PIXELS, PLACE = "images.npy", "images.toml"
_PIXELS_OF = ("float16", "float32", "float64")


class ImageSizes(NamedTuple):
    """What a model reads: C, H, W of an image, and how many tokens of a row stand for it; 0 where
    it does not stand among them."""

    shape: tuple[int, ...]
    places: int = 0


class Images(Counted, Protocol):
    """Texts with an image each, by number."""

    def sizes(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return of each text how many ids it has without those of its image, and how many of them
        stand before the image; int64 [n]."""
        ...

    def text(self, number: int, most: int) -> np.ndarray:
        """Return the first ids of a text without those of its image, int64; at most `most`."""
        ...

    def pixels(self, number: int) -> np.ndarray:
        """Return an image, [C, H, W]."""
        ...


class FolderImages:
    """`images:DIR`: the documents of DIR/text, a folder of shards, and the pixels of
    DIR/images.npy, [documents, C, H, W].

    Raises DataError where one cannot be read, their numbers or the sizes of the images are others,
    or a document has its image twice or past the end of a row.
    """

    fixed = False

    def __init__(self, name: str, folder: Path, asked: ImageSizes, seq: int) -> None:
        self.name, self._asked = name, asked
        self._documents = Documents(folder / "text")
        self._pixels = _opened(folder / PIXELS)
        corpus = self._documents.corpus
        self.tokenizer, self.vocab = corpus.tokenizer, corpus.vocab
        self.count = len(self._documents)
        self._check(folder)
        token = _token(folder / PLACE)
        self._first, self._own = self._places_of(token, seq)
        size = (folder / PIXELS).stat().st_size
        said = f"{corpus.identity} {size} {token} {_sample(self._pixels)}"
        self.identity = hashlib.sha256(said.encode()).hexdigest()

    def _check(self, folder: Path) -> None:
        if len(self._pixels) != self.count or not self.count:
            raise DataError(
                f"{self.name} has {self.count} texts and {len(self._pixels)} images; document k of "
                f"{folder / 'text'} goes with image k, so give as many of both"
            )
        if self._pixels.shape[1:] != self._asked.shape:
            raise DataError(
                f"{folder / PIXELS} has images of {list(self._pixels.shape[1:])}, the model reads "
                f"{list(self._asked.shape)}; resize them as its image processor does"
            )

    def _places_of(self, token: int | None, seq: int) -> tuple[np.ndarray, np.ndarray]:
        """Return of each document how many ids stand before its image, and its image's own ids."""
        none = np.zeros(self.count, np.int64)
        if token is None:
            return none, none
        bounds, first, own = self._documents.bounds, none.copy(), none.copy()
        at = _found(self._documents.corpus, token)
        of = np.searchsorted(bounds, at, side="right") - 1
        np.add.at(own, of, 1)
        known, index = np.unique(of, return_index=True)
        first[known] = at[index] - bounds[known]
        last = at[np.append(index[1:], len(at)) - 1] - bounds[known]
        apart = last - first[known] + 1 != own[known]
        wrong = known[apart | ~np.isin(own[known], (1, self._asked.places))]
        if len(wrong):
            raise DataError(
                f"{self.name}: document {wrong[0]} has {own[wrong[0]]} tokens {token}, which stand "
                f"for its image; give one, or {self._asked.places} one behind the other"
            )
        if len(late := np.flatnonzero(first + self._asked.places > seq)):
            raise DataError(
                f"{self.name}: the image of document {late[0]} begins at token {first[late[0]]} "
                f"and takes {self._asked.places}, a row has {seq}; plan with a larger --seq, or "
                "move it"
            )
        return first, own

    def sizes(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._documents.sizes(numbers) - self._own[numbers], self._first[numbers]

    def text(self, number: int, most: int) -> np.ndarray:
        first, own = int(self._first[number]), int(self._own[number])
        ids = self._documents.read(number, most + own)
        return np.delete(ids, np.s_[first : first + own])

    def pixels(self, number: int) -> np.ndarray:
        return self._pixels[number]


class DrawnImages:
    """Texts of a corpus without documents, each id of it in one text, with pixels drawn by their
    number."""

    def __init__(self, corpus: Corpus, asked: ImageSizes, seq: int) -> None:
        self._width = seq + 1 - asked.places
        check_length(corpus, self._width, f"one text of {self._width} beside its image")
        self._corpus, self._asked = corpus, asked
        self.count = corpus.length // self._width
        self.name, self.vocab, self.fixed = corpus.name, corpus.vocab, corpus.fixed
        self.tokenizer = corpus.tokenizer

    @cached_property
    def identity(self) -> str:
        return hashlib.sha256(f"images of {self._corpus.identity}".encode()).hexdigest()

    def sizes(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(numbers), self._width, np.int64), np.zeros(len(numbers), np.int64)

    def text(self, number: int, most: int) -> np.ndarray:
        return self._corpus.read(self._width * number, self._width * (number + 1))

    def pixels(self, number: int) -> np.ndarray:
        seed = int(hash_of(np.array([number], np.uint64), 0)[0])
        return np.random.default_rng(seed).standard_normal(self._asked.shape, np.float32)


class ImageRows:
    """Texts with images as rows of one length."""

    def __init__(self, images: Images, asked: ImageSizes) -> None:
        self.images, self.asked, self.name, self.vocab = images, asked, images.name, images.vocab
        self.count, self.fixed = images.count, images.fixed
        self.identity, self.tokenizer = images.identity, images.tokenizer

    def num_labels(self, numbers: np.ndarray, seq: int) -> int:
        sizes, first = self.images.sizes(numbers)
        places = self.asked.places
        behind = np.minimum(sizes + places, seq + 1) - places
        # What comes first in a row is no label, of the text or of its image.
        return int((behind - ((first > 0) | (places == 0))).sum())

    def batch(self, numbers: np.ndarray, seq: int, label_count: int) -> Batch:
        rows, places = len(numbers), self.asked.places
        tokens = np.zeros((rows, seq), np.int64)
        labels = np.full((rows, seq), IGNORED, np.int64)
        known = np.minimum(numbers, self.count - 1)
        first = self.images.sizes(known)[1]
        at = first[:, None] + np.arange(places)
        pixels = np.zeros((rows, *self.asked.shape), np.float32)
        for row, number in enumerate(known.tolist()):
            text, begin = self.images.text(number, seq + 1), int(first[row])
            ids = np.insert(text, begin, np.full(places, IGNORED))[: seq + 1]
            tokens[row, : len(ids) - 1] = np.maximum(ids[:-1], 0)
            pixels[row] = self.images.pixels(number)
            if numbers[row] < self.count:
                labels[row, : len(ids) - 1] = ids[1:]
        others = {"images": torch.from_numpy(pixels), "places": torch.from_numpy(at)}
        return Batch(torch.from_numpy(tokens), torch.from_numpy(labels), label_count, others)


def _opened(path: Path) -> np.ndarray:
    """Map a file of pixels. Raises DataError."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}; write it with numpy.save") from None
    if found.ndim != 4 or found.dtype.name not in _PIXELS_OF:
        raise DataError(
            f"{path} is {found.dtype.name} {list(found.shape)}; give [images, C, H, W] of "
            f"{', '.join(_PIXELS_OF)}"
        )
    return found


def _token(path: Path) -> int | None:
    """Return the id that stands for an image in the texts, None where no file says one."""
    if not path.is_file():
        return None
    try:
        said = tomllib.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"cannot read {path}: {error}") from None
    token = said.get("token")
    if set(said) != {"token"} or type(token) is not int or token < 0:
        raise DataError(f"{path} holds {said}; write token = N, the id of an image in the texts")
    return token


def _found(corpus: Corpus, token: int) -> np.ndarray:
    """Return the places of a token in a corpus, int64, read in parts."""
    part, found = 2**24, [np.empty(0, np.int64)]
    for start in range(0, corpus.length, part):
        ids = corpus.read(start, min(start + part, corpus.length))
        found.append(np.flatnonzero(ids == token) + start)
    return np.concatenate(found)


def _sample(pixels: np.ndarray) -> str:
    """Return a hash of up to 64 images spread over all."""
    picked = np.unique(np.linspace(0, len(pixels) - 1, 64).astype(np.int64))
    digest = hashlib.sha256(str((pixels.shape, pixels.dtype.name)).encode())
    for number in picked.tolist():
        digest.update(np.ascontiguousarray(pixels[number]).tobytes())
    return digest.hexdigest()
