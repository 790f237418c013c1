"""From what `--data` says to a corpus or a reader."""

import os
from pathlib import Path

from ..given import DATA_KINDS
from .batches import BatchReader, Reader, shuffled_reader
from .builtin import file_bytes, standard_library, synthetic
from .corpus import Corpus, JoinedCorpus
from .errors import DataError
from .manifest import read_manifest
from .mixture import Mixture, read_mixture, shares_of
from .own_rows import open_own_rows
from .shards import open_shards
from .stream import StreamReader, open_stream, stream_file


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
        raise DataError(f"{name} names no held-out part; give --eval-data, shards:DIR for instance")
    raise DataError(f"unknown corpus {name!r}; give {DATA_KINDS}")


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


def held_out_corpus(name: str, eval_data: str) -> Corpus:
    """Open what an evaluation reads: `eval_data` whole where it is shards, else a held-out part."""
    if eval_data.startswith("shards:"):
        return open_corpus(eval_data, "train")
    return open_corpus(eval_data or name, "held-out")


def open_reader(
    name: str, *, global_batch: int, seq: int, seed: int, vocab: int | None = None
) -> Reader:
    """The training batches of `name`, shuffled by seed and epoch; a stream in its own order.

    vocab: the model's. Raises DataError for data that cannot be read, is shorter than a sample, or
    has a larger vocabulary than the model.
    """
    kind, _, rest = name.partition(":")
    sizes = {"global_batch": global_batch, "seq": seq}
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
    if kind in ("file", "shards") and rest:
        return f"{kind}:{file.parent / rest}"
    return name


def absolute(name: str) -> str:
    """`name` with its path made absolute: a program runs in its own folder."""
    kind, _, rest = name.partition(":")
    is_path = kind in ("file", "shards", "mix") or (kind == "hf-stream" and stream_file(rest))
    return f"{kind}:{Path(rest).resolve()}" if is_path and rest else name
