"""From what `--data` says to a corpus or a reader."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from ..given import DATA_KINDS
from .batches import BatchReader, Reader, shuffled_reader
from .builtin import file_bytes, standard_library, synthetic
from .corpus import Corpus, JoinedCorpus
from .errors import DataError
from .held_out import HeldOut, HeldOutWindows
from .images import DrawnImages, FolderImages, ImageRows, ImageSizes
from .manifest import read_manifest
from .mixture import Mixture, read_mixture, shares_of
from .numbered import HeldOutRows, Numbered, NumberedReader
from .own_rows import open_own_rows
from .pairs import DrawnPairs, FolderPairs, PairRows
from .shards import open_shards
from .stream import StreamReader, open_stream, stream_file

# By role the sizes of a row of what a model reads beside tokens.
Reads: TypeAlias = Mapping[str, tuple[int, ...]]

_PATHS = ("file", "shards", "pairs", "images")
_TOKENS_ALONE: Reads = MappingProxyType({})


def open_corpus(name: str, split: str) -> Corpus:
    """The corpus called `name`, its `train` or its `held-out` part.

    demo                    the Python standard library's source, by file; a NUL ends each file
    shards:DIR              what `meshwright data tokenize` wrote; held out is the folder it names
    py:module:name          rows of your own code, see own_rows.py; it has no held-out part
    mix:FILE.toml           held out only: the held-out parts of its sources, one behind the other
    file:PATH               raw bytes of one file; the last twentieth is held out
    random:VOCAB[:SEED]     uniform tokens without end
    fixed:VOCAB[:SEED]      uniform tokens, the same batch at every step
    Raises DataError for an unknown name or split, or data that cannot be read.
    """
    if split not in ("train", "held-out"):
        raise DataError(f"unknown split {split!r}; choose from train, held-out")
    held_out = split == "held-out"
    kind, _, rest = name.partition(":")
    if name == "demo":
        return standard_library(held_out)
    if kind == "shards" and rest:
        return open_shards(_held_out_folder(Path(rest)) if held_out else Path(rest))
    if kind == "mix" and rest and held_out:
        sources = [source.data for source in read_mixture(Path(rest))]
        return JoinedCorpus(
            name, tuple(open_corpus(beside(Path(rest), data), split) for data in sources)
        )
    if kind == "file" and rest:
        return file_bytes(name, Path(rest), held_out)
    if kind in ("random", "fixed") and rest:
        return synthetic(name, held_out)
    if kind in ("hf-stream", "py") and held_out:
        raise DataError(
            f"{name} names no held-out part; give --eval-data shards:DIR, file:PATH or demo"
        )
    if kind in _BESIDE:
        raise DataError(f"{name} holds {_BESIDE[kind]}, or other data")
    raise DataError(f"unknown corpus {name!r}; give {DATA_KINDS}")


_BESIDE = {
    "pairs": "pairs of a source and a target, the model reads no source; give a model with an "
    "encoder and a decoder",
    "images": "texts with an image each, the model reads no images; plan an image-text model with "
    "hf-images:DIR",
}
_HELD_OUT = {
    "demo": "modules that training does not read",
    "mix": "the held-out parts of its sources",
    "file": "its last twentieth",
    "random": "rows of another seed",
    "fixed": "rows of another seed",
}


def _held_out_folder(folder: Path) -> Path:
    named = read_manifest(folder).held_out
    if not named:
        raise DataError(
            f"{folder} names no held-out part; give --eval-data shards:DIR, or tokenize with "
            "--held-out DIR"
        )
    straight = Path(os.path.normpath(folder / named))  # another place behind a symbolic link
    return straight if straight.is_dir() else folder / named


def held_out_name(name: str, eval_data: str) -> str:
    """Return what `held_out_corpus` opens, in words."""
    if eval_data:
        return eval_data
    kind, _, rest = name.partition(":")
    if kind == "shards":
        try:
            return f"shards:{_held_out_folder(Path(rest))}"
        except DataError:
            return "none"
    return _HELD_OUT.get(kind, "none")


def open_held_out(name: str, eval_data: str, seq: int, reads: Reads = _TOKENS_ALONE) -> HeldOut:
    """Open what an evaluation reads: `eval_data` whole where it is shards, pairs or images, else a
    held-out part. reads: what the model reads beside tokens.

    Raises DataError for data that cannot be read, or has no held-out part.
    """
    if reads:
        kind = name.partition(":")[0]
        if not eval_data and kind in _BESIDE:
            raise DataError(f"{name} names no held-out part; give --eval-data {kind}:DIR")
        return HeldOutRows(open_numbered(eval_data or name, seq, reads, "held-out"))
    whole = eval_data.startswith("shards:")
    return HeldOutWindows(open_corpus(eval_data or name, "train" if whole else "held-out"))


def open_numbered(name: str, seq: int, reads: Reads, split: str = "train") -> Numbered:
    """Open the rows called `name`, of up to `seq` ids, with what a model reads beside tokens.

    pairs:DIR               the documents of DIR/source and DIR/target, each a folder of shards
    images:DIR              the documents of DIR/text, a folder of shards, and DIR/images.npy
    random:VOCAB[:SEED]     uniform ids without end; fixed: the same batch at every step
    Raises DataError for data that cannot be read, or holds none of it.
    """
    kind, _, rest = name.partition(":")
    drawn = open_corpus(name, split) if kind in ("random", "fixed") and rest else None
    if "source" in reads:
        if drawn is None and not (kind == "pairs" and rest):
            raise DataError(_lacks(name, "sources, and the model reads one", "pairs"))
        return PairRows(DrawnPairs(drawn, seq) if drawn else FolderPairs(name, Path(rest)))
    sizes = ImageSizes(reads["images"], *reads.get("places", ()))
    if drawn is None and not (kind == "images" and rest):
        raise DataError(_lacks(name, "images, and the model reads one", "images"))
    own = DrawnImages(drawn, sizes, seq) if drawn else FolderImages(name, Path(rest), sizes, seq)
    return ImageRows(own, sizes)


def _lacks(name: str, what: str, kind: str) -> str:
    return f"{name} holds no {what} beside its tokens; give {kind}:DIR, random:VOCAB or fixed:VOCAB"


def open_reader(
    name: str,
    *,
    global_batch: int,
    seq: int,
    seed: int,
    vocab: int | None = None,
    reads: Reads = _TOKENS_ALONE,
) -> Reader:
    """The training batches of `name`, shuffled by seed and epoch; a stream in its own order.

    vocab: the model's. reads: what it reads beside tokens. Raises DataError for data that cannot be
    read, is shorter than a sample, or has a larger vocabulary than the model.
    """
    kind, _, rest = name.partition(":")
    sizes = {"global_batch": global_batch, "seq": seq}
    if reads:
        return NumberedReader(open_numbered(name, seq, reads), **sizes, seed=seed, vocab=vocab)
    if kind == "mix" and rest:
        mixture = _mixture(name, Path(rest), seq + 1, seed)
        return BatchReader(mixture, **sizes, vocab=vocab)
    if kind == "hf-stream" and rest:
        return StreamReader(open_stream(rest), **sizes, vocab=vocab)
    if kind == "py" and rest:
        rows = open_own_rows(name, width=seq + 1, seed=seed, vocab=vocab)
        return BatchReader(rows, **sizes, vocab=vocab)
    return shuffled_reader(open_corpus(name, "train"), **sizes, seed=seed, vocab=vocab)


def _mixture(name: str, path: Path, width: int, seed: int) -> Mixture:
    sources = read_mixture(path)
    corpora = [open_corpus(beside(path, source.data), "train") for source in sources]
    return Mixture(name, corpora, shares_of(sources), width=width, seed=seed)


def beside(file: Path, name: str) -> str:
    """`name` with its path seen from the folder of `file`."""
    kind, _, rest = name.partition(":")
    if kind in _PATHS and rest:
        return f"{kind}:{file.parent / rest}"
    return name


def absolute(name: str) -> str:
    """`name` with its path made absolute: a program runs in its own folder."""
    kind, _, rest = name.partition(":")
    is_path = kind in (*_PATHS, "mix") or (kind == "hf-stream" and stream_file(rest))
    return f"{kind}:{Path(rest).resolve()}" if is_path and rest else name
