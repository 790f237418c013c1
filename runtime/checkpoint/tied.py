"""A head that a folder of weights stores beside the table that a model ties it to."""

import re
from collections.abc import Collection, Iterable

import torch

from ..engine.boxes import Box
from .manifest import CheckpointError, Files, Stored, any_rank, rank, world

_HEADS = ("lm_head.weight", "embed_out.weight")
_TABLE = re.compile(r"(^|\.)(embed_tokens|wte|shared|word_embeddings|embed_in|embeddings)\.weight$")
_ROWS = 4096  # compared at a time


def check_tied(stored: Iterable[Stored], read: Collection[str], files: Files) -> None:
    """Raise CheckpointError, on all ranks, for a head that nothing reads, as the model has it as
    its table, and whose values are not the table's. read: keys of the tensors that are read."""
    there = {item.key: item for item in stored}
    known = [there[key] for key in sorted(there.keys() & set(read)) if _TABLE.search(key)]
    tables = [item for item in known if len(item.box.sizes) == 2]
    problem = ""
    for head in (item for key, item in there.items() if key not in read and key.endswith(_HEADS)):
        table = next((item for item in tables if item.box == head.box), None)
        if table is not None and not _alike(head, table, files):
            problem = _apart(head.key, table.key, files)
    problem = any_rank(problem)
    if problem:
        raise CheckpointError(problem)


def _alike(head: Stored, table: Stored, files: Files) -> bool:
    """Tell whether two matrices hold the same values in the rows that this rank compares."""
    rows, columns = head.box.sizes
    for start in range(rank() * _ROWS, rows, world() * _ROWS):
        part = Box((start, 0), (min(_ROWS, rows - start), columns))
        first, second = (files.read(item, part).double() for item in (head, table))
        if not torch.allclose(first, second, rtol=0, atol=0, equal_nan=True):
            return False
    return True


def _apart(head: str, table: str, files: Files) -> str:
    return (
        f"{files.path} holds {head} and {table} with other values, and the model ties them: to "
        "train them apart, as transformers loads them, set tie_word_embeddings to false in "
        f"config.json and plan that; to train {table} as both, leave {head} out of the folder"
    )
