"""A folder of shards as a corpus, mapped into memory; and what a person may ask about it."""

from pathlib import Path

import numpy as np

from ..metrics.progress import Progress
from .corpus import ArrayCorpus, JoinedCorpus
from .manifest import Manifest, check_hashes, check_sizes, read_manifest
from .mapped import MappedTokens

CHEAP_BYTES = 2**26  # hashes of no more than this are checked whenever the folder is opened


def open_shards(folder: Path) -> JoinedCorpus:
    """The stream of a folder that `meshwright data tokenize` wrote.

    Raises DataError where a shard is missing, of another size than the manifest says, or, in a
    folder of up to 64 MiB, of another content; larger ones are checked by `verify` only.
    """
    manifest = read_manifest(folder)
    check_cheaply(folder, manifest)
    tokenizer = manifest.tokenizer_identity
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    parts = tuple(
        ArrayCorpus(
            f"shards:{folder}/{shard.name}",
            MappedTokens(folder / f"{shard.name}.bin", dtype),
            manifest.vocab_size,
            tokenizer,
            shard.sha256,
        )
        for shard in manifest.shards
    )
    return JoinedCorpus(f"shards:{folder}", parts, manifest.identity)


def check_cheaply(folder: Path, manifest: Manifest) -> bool:
    """Sizes, and hashes where they cost next to nothing; returns whether they were. Raises
    DataError."""
    check_sizes(folder, manifest)
    cheap = total_bytes(manifest) <= CHEAP_BYTES
    if cheap:
        check_hashes(folder, manifest)
    return cheap


def total_bytes(manifest: Manifest) -> int:
    return sum(size for s in manifest.shards for _, size, _ in s.files(manifest.dtype))


def verify(folder: Path) -> Manifest:
    """Check every size and hash, with a progress line on stderr. Raises DataError."""
    manifest = read_manifest(folder)
    check_sizes(folder, manifest)
    bar = Progress("verify", total_bytes(manifest))
    try:
        check_hashes(folder, manifest, bar.at)
    finally:
        bar.clear()
    return manifest


def describe(folder: Path) -> str:
    """The manifest as a few lines of text, and what of it was checked. Raises DataError."""
    m = read_manifest(folder)
    hashed = check_cheaply(folder, m)
    sizes = [shard.tokens for shard in m.shards]
    lines = [
        f"{folder}: {_count(m.tokens, 'token')}, {_count(m.documents, 'document')}",
        f"tokenizer   {m.tokenizer['name']} ({m.tokenizer['sha256'][:12]}), vocabulary "
        f"{m.vocab_size:,}, a document ends with {_end(m.tokenizer['end'])}",
        f"shards      {len(sizes)} of {max(sizes):,} tokens, {m.dtype}, "
        f"{total_bytes(m) / 2**20:,.1f} MiB",
        f"inputs      {len(m.inputs)}: {', '.join(str(i['name']) for i in m.inputs[:4])}"
        + (", ..." if len(m.inputs) > 4 else ""),
        f"passed over {m.broken:,} broken, {m.empty:,} empty documents",
        f"held out    {m.held_out or 'none named; --held-out DIR names one'}",
        f"identity    {m.identity}",
        f"checked     {_HASHED if hashed else _SIZED} meshwright data verify",
    ]
    return "\n".join(lines)


_HASHED = "sizes and SHA-256 of all shards, as by"
_SIZED = "sizes; the SHA-256 of so many bytes only by"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _end(token: int | None) -> str:
    return "no token" if token is None else f"token {token}"
