"""Which stored box feeds which local box, planned by PyTorch's distributed checkpoint (DCP).

Of DCP this uses the planning alone, `create_read_items_for_chunk_list` and the dataclasses it takes
and gives, the same since torch 2.4; our own files are read by what it returns, so that nothing is
unpickled. It is imported by the first plan: that takes 0.6 s, which only a run that resumes pays.
For a Llama of 70B with Adam, stored by 64 ranks, one of 48 ranks plans for 0.8 s, a single one for
4.5 s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..engine.boxes import Box


@dataclass(frozen=True)
class Read:
    """A logical box to copy: from which of the stored boxes, into which of the local ones."""

    stored: int
    local: int
    part: Box


def plan_reads(name: str, stored: Sequence[Box], local: Sequence[Box]) -> list[Read]:
    """Return what the boxes of one tensor have in common, pair by pair, in any order.

    All boxes have one number of dims. Boxes of one side that overlap do so in the reads.
    """
    if not stored:
        return []
    from torch.distributed.checkpoint.metadata import TensorProperties, TensorStorageMetadata
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    dims = range(len(stored[0].sizes))
    size = torch.Size(max(b.offsets[d] + b.sizes[d] for b in stored) for d in dims)
    described = TensorStorageMetadata(TensorProperties(), size, _chunks(stored))
    items = create_read_items_for_chunk_list(name, described, _chunks(local))
    return [_read(item, stored) for item in items]


def _chunks(boxes: Sequence[Box]) -> list[Any]:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return [ChunkStorageMetadata(torch.Size(b.offsets), torch.Size(b.sizes)) for b in boxes]


def _read(item: Any, stored: Sequence[Box]) -> Read:
    """An index of DCP carries the place of its chunk in the list that was given."""
    source, target = item.storage_index.index, item.dest_index.index
    starts = zip(stored[source].offsets, item.storage_offsets, strict=True)
    return Read(source, target, Box(tuple(a + b for a, b in starts), tuple(item.lengths)))
