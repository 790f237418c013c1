"""The manifest of a folder of shards: what lies there, and how to tell that it still does.

A shard is two files: `shard_00000.bin`, ids in the manifest's dtype, little-endian; and
`shard_00000.ends`, uint64 little-endian: for each document that ends in the shard, the place
behind its last id. The stream is the shards one behind the other; documents may cross shards.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

from ..identity import TokenizerIdentity
from .errors import DataError
from .tokenizer import BYTES

VERSION = "meshwright data v1"
FILE = "manifest.json"
DTYPES = {"uint8": 1, "uint16": 2, "uint32": 4}  # bytes of an id
END_BYTES = 8


@dataclass(frozen=True)
class Shard:
    """One pair of files. documents: those that end in it."""

    name: str
    tokens: int
    documents: int
    sha256: str
    ends_sha256: str

    def files(self, dtype: str) -> list[tuple[str, int, str]]:
        """(file, bytes, digest) of both."""
        return [
            (f"{self.name}.bin", self.tokens * DTYPES[dtype], self.sha256),
            (f"{self.name}.ends", self.documents * END_BYTES, self.ends_sha256),
        ]


@dataclass(frozen=True)
class Manifest:
    """tokenizer: name, sha256, end; of newer folders path and vocab_sha256, too. inputs: name, size
    and stamp of each. broken, empty: documents passed over. held_out: a folder of shards, relative
    to this one, or ""."""

    dtype: str
    vocab_size: int
    tokens: int
    documents: int
    tokenizer: dict[str, Any]
    inputs: list[dict[str, Any]]
    settings: dict[str, Any]
    shards: tuple[Shard, ...]
    broken: int = 0
    empty: int = 0
    held_out: str = ""
    version: str = field(default=VERSION)

    @property
    def tokenizer_identity(self) -> TokenizerIdentity:
        said = self.tokenizer
        kind = "bytes" if said["sha256"] == BYTES.sha256 else "tokenizers"
        where = said.get("path", ""), said["sha256"], said.get("vocab_sha256", "")
        return TokenizerIdentity(kind, said["name"], *where)

    @property
    def identity(self) -> str:
        """The same for the same ids, wherever they lie: a hash over the shards' hashes."""
        what = [self.dtype, self.vocab_size, self.tokenizer["sha256"]]
        what += [(shard.tokens, shard.sha256) for shard in self.shards]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`, checked against itself. Raises DataError."""
    path = folder / FILE
    try:
        rows = json.loads(path.read_text())
    except OSError as error:
        hint = "tokenizing was not finished: run it again" if _unfinished(folder) else _MAKE
        raise DataError(f"cannot read {path}: {error.strerror}; {hint}") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    found = rows.get("version") if isinstance(rows, dict) else None
    if found != VERSION:
        raise DataError(f"{path}: version {found!r}, expected {VERSION!r}")
    try:
        shards = tuple(Shard(**row) for row in rows.pop("shards"))
        manifest = Manifest(**rows, shards=shards)
        _check(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is damaged: {error}; tokenize again") from None
    return manifest


_MAKE = "make it with meshwright data tokenize"


def _unfinished(folder: Path) -> bool:
    return (folder / "progress.json").exists()


def _check(manifest: Manifest) -> None:
    """Raises ValueError where the numbers contradict each other."""
    if manifest.dtype not in DTYPES:
        raise ValueError(f"dtype {manifest.dtype!r}, expected one of {', '.join(DTYPES)}")
    if not 0 < manifest.vocab_size <= 256 ** DTYPES[manifest.dtype]:
        raise ValueError(f"vocab_size {manifest.vocab_size} does not fit {manifest.dtype}")
    for shard in manifest.shards:
        if shard.tokens <= 0 or shard.documents < 0 or PurePath(shard.name).name != shard.name:
            raise ValueError(f"shard {shard.name!r} of {shard.tokens} tokens")
    for name in ("tokens", "documents"):
        total = sum(getattr(shard, name) for shard in manifest.shards)
        if total != getattr(manifest, name):
            raise ValueError(f"shards sum to {total} {name}, it says {getattr(manifest, name)}")
    said = manifest.tokenizer
    for value in (said["name"], said["sha256"], said.get("path", ""), said.get("vocab_sha256", "")):
        value.encode()


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Every shard is there and whole. Raises DataError with both sizes."""
    for shard in manifest.shards:
        for name, size, _ in shard.files(manifest.dtype):
            check_size(folder / name, size)


def check_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {_RESTORE}") from None
    if found != size:
        raise DataError(f"{path} has {found} bytes, the manifest says {size}; {_RESTORE}")


_RESTORE = "restore the file, or tokenize again into an empty folder"


def check_hashes(
    folder: Path, manifest: Manifest, progress: Callable[[int], None] = lambda done: None
) -> None:
    """Every shard holds what was written. progress: called with the bytes read so far.

    Raises DataError naming the first file that changed, with both hashes.
    """
    done = 0
    for shard in manifest.shards:
        for name, size, digest in shard.files(manifest.dtype):
            check_size(folder / name, size)
            check_hash(folder / name, digest)
            progress(done := done + size)


def check_hash(path: Path, digest: str) -> None:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise DataError(
            f"{path} has changed: SHA-256 {found[:12]}, the manifest says {digest[:12]}; {_RESTORE}"
        )
