"""Tokenizers: text to ids. Bytes are ours; anything else is a Hugging Face `tokenizers` file."""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..identity import TokenizerIdentity
from .errors import DataError

Text = str | bytes
BYTES_SHA256 = hashlib.sha256(b"meshwright bytes v1: a byte is a token, NUL ends").hexdigest()
BYTES = TokenizerIdentity("bytes", "bytes", "", BYTES_SHA256)


class Tokenizer(Protocol):
    """vocab_size: largest id + 1. end: id behind each document."""

    @property
    def identity(self) -> TokenizerIdentity: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def end(self) -> int | None: ...

    def encode(self, text: Text) -> np.ndarray:
        """Ids [n] of one text, without marks around it. Raises UnicodeError for bad UTF-8."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """A byte is a token; NUL, which text does not hold, ends a document."""

    identity: TokenizerIdentity = BYTES
    vocab_size: int = 256
    end: int | None = 0

    def encode(self, text: Text) -> np.ndarray:
        return np.frombuffer(text if isinstance(text, bytes) else text.encode(), np.uint8)


@dataclass(frozen=True)
class FileTokenizer:
    """A `tokenizers` file; `backend` is the library's Tokenizer."""

    identity: TokenizerIdentity
    vocab_size: int
    end: int | None
    backend: Any

    def encode(self, text: Text) -> np.ndarray:
        words = text.decode() if isinstance(text, bytes) else text
        ids = self.backend.encode(words, add_special_tokens=False).ids
        return np.asarray(ids, id_dtype(self.vocab_size))


def id_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned type that holds every id."""
    return np.min_scalar_type(vocab_size - 1).newbyteorder("<")


@lru_cache(maxsize=4)
def load_tokenizer(spec: str, end: str = "") -> Tokenizer:
    """The tokenizer called `spec`: `bytes`, a tokenizers JSON file, or a Hugging Face folder.

    end: the token that ends a document, "none" for no token, "" for what the folder's
    tokenizer_config.json calls eos_token. It is never guessed from the vocabulary.
    Raises DataError when the file cannot be read or the end is not known.
    """
    if spec == "bytes":
        if end:
            raise DataError(f"--eos {end}: bytes end a document with NUL; leave it out")
        return ByteTokenizer()
    path = Path(spec)
    file = path / "tokenizer.json" if path.is_dir() else path
    backend, digest = _read(file)
    ids = backend.get_vocab(with_added_tokens=True)
    if not ids:
        raise DataError(f"{file} has a vocabulary of {len(ids)} tokens; give a trained tokenizer")
    word = end or (_configured_end(path / "tokenizer_config.json") if path.is_dir() else "")
    ended = None if word == "none" else _end_id(file, word, backend)
    identity = _identity(path, digest, ids)
    return FileTokenizer(identity, max(ids.values()) + 1, ended, backend)


def tokenizer_identity(spec: str) -> TokenizerIdentity:
    """Identity of the tokenizer called `spec`, whatever ends its documents. Raises DataError."""
    if spec == "bytes":
        return BYTES
    path = Path(spec)
    backend, digest = _read(path / "tokenizer.json" if path.is_dir() else path)
    return _identity(path, digest, backend.get_vocab(with_added_tokens=True))


def folder_tokenizer(folder: Path) -> TokenizerIdentity | None:
    """Identity of the tokenizer that lies in a Hugging Face folder, None where none does.

    Raises DataError where it cannot be read.
    """
    return tokenizer_identity(str(folder)) if (folder / "tokenizer.json").is_file() else None


def _identity(path: Path, digest: str, ids: dict[str, int]) -> TokenizerIdentity:
    vocabulary = hashlib.sha256(json.dumps(ids, sort_keys=True).encode()).hexdigest()
    return TokenizerIdentity("tokenizers", path.name, str(path.resolve()), digest, vocabulary)


def _read(file: Path) -> tuple[Any, str]:
    try:
        from tokenizers import Tokenizer as Backend
    except ImportError:
        raise DataError(
            f"{file} needs the library tokenizers: pip install 'meshwright[data]', "
            "or take --tokenizer bytes"
        ) from None
    try:
        text = file.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read {file}: {error.strerror}; --tokenizer takes bytes, a tokenizers JSON "
            "file, or a Hugging Face folder that holds a tokenizer.json"
        ) from None
    try:
        backend = Backend.from_str(text.decode())
        # A file may ask for both, as a model wants of its batches.
        backend.no_truncation()
        backend.no_padding()
        return backend, hashlib.sha256(text).hexdigest()
    except Exception as error:  # the library raises bare Exception for any fault of the file
        raise DataError(f"{file} is no tokenizers file: {error}") from None


def _configured_end(file: Path) -> str:
    try:
        token = json.loads(file.read_text()).get("eos_token") or ""
    except (OSError, ValueError, AttributeError):
        return ""
    # Some folders write the token with its flags.
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _end_id(file: Path, word: str, backend: Any) -> int:
    index = backend.token_to_id(word) if word else None
    if index is not None:
        return index
    special = [t.content for t in backend.get_added_tokens_decoder().values() if t.special]
    has = f"holds no token {word!r}" if word else "does not say which token ends a document"
    raise DataError(
        f"{file} {has}; give --eos TOKEN (special tokens: {', '.join(special[:8]) or 'none'}) "
        "or --eos none"
    )
