"""Chunks to ids in worker processes, handed back in the order they were given."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np

from .documents import Broken, Piece
from .inputs import Input
from .tokenizer import Tokenizer, id_dtype, load_tokenizer

IN_FLIGHT = 4  # chunks per worker under way, so that memory stays bounded
WATCH_S = 1.0


class Chunk(NamedTuple):
    """start..stop of input `number`, and the tokenizer's name and end."""

    number: int
    item: Input
    start: int
    stop: int
    tokenizer: str
    end: str


class Result(NamedTuple):
    """ids in the manifest's dtype; ends: places behind documents' last ids; lines: of the chunk."""

    ids: np.ndarray
    ends: np.ndarray
    broken: list[Broken]
    empty: int
    lines: int


def in_order(chunks: Iterator[Chunk], workers: int) -> Iterator[tuple[Chunk, Result]]:
    """Each chunk with its result; one worker is this process."""
    if workers == 1:
        yield from ((chunk, tokenize_chunk(chunk)) for chunk in chunks)
        return
    waiting: deque[tuple[Chunk, Future[Result]]] = deque()
    with _pool(workers) as pool:
        for chunk in chunks:
            waiting.append((chunk, pool.submit(tokenize_chunk, chunk)))
            if len(waiting) >= workers * IN_FLIGHT:
                first, future = waiting.popleft()
                yield first, future.result()
        for chunk, future in waiting:
            yield chunk, future.result()


def _pool(workers: int) -> ProcessPoolExecutor:
    # A fork costs milliseconds where a fresh interpreter would import torch anew.
    start = "fork" if os.uname().sysname == "Linux" else "spawn"
    return ProcessPoolExecutor(
        workers, mp_context=get_context(start), initializer=_begin, initargs=(os.getpid(),)
    )


def _begin(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end when it was killed: nobody else would end this worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not as the parent takes it

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def tokenize_chunk(chunk: Chunk) -> Result:
    """The ids of a chunk: each document's, then the tokenizer's end."""
    coder = load_tokenizer(chunk.tokenizer, chunk.end)
    none = np.empty(0, id_dtype(coder.vocab_size))
    mark = none if coder.end is None else np.array([coder.end], none.dtype)
    parts, ends, broken = [none], [], []
    count = empty = lines = 0
    for piece in chunk.item.pieces(chunk.start, chunk.stop):
        lines = piece.at
        ids = _encode(coder, piece)
        if isinstance(ids, Broken):
            broken.append(ids)
            ids = none
            if isinstance(piece, Broken) or piece.begins:
                continue
        assert isinstance(piece, Piece)
        if not len(ids) and piece.begins:
            empty += piece.ends
            continue
        parts += [ids.astype(none.dtype, copy=False), mark if piece.ends else none]
        count += len(ids) + len(parts[-1])
        if piece.ends:
            ends.append(count)
    return Result(np.concatenate(parts), np.array(ends, np.int64), broken, empty, lines)


def _encode(coder: Tokenizer, piece: Piece | Broken) -> np.ndarray | Broken:
    if isinstance(piece, Broken):
        return piece
    try:
        return coder.encode(piece.text)
    except UnicodeDecodeError as error:
        return Broken(piece.at + error.start, "no UTF-8 here")
