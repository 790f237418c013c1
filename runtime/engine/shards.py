"""Which logical boxes this rank's bucket shards hold, and which of them a checkpoint takes."""

import math
from collections.abc import Iterator

from torch import Tensor

from . import mesh
from .boxes import Cut, Piece, pieces_of
from .buckets import FlatBucket
from .layout import Layout


def local_pieces(bucket: FlatBucket, layout: Layout) -> Iterator[tuple[str, int, Piece]]:
    """(parameter, first element in the shard, piece) of everything in this rank's shard."""
    low = bucket.index * bucket.shard_numel
    for entry in bucket.bucket.entries:
        first = max(entry.offset, low) - entry.offset
        numel = math.prod(entry.shape)
        last = min(entry.offset + numel, low + bucket.shard_numel) - entry.offset
        if first >= last:
            continue
        shards = layout.param(entry.param).shards
        cuts = tuple(Cut(d, o, mesh.coordinate(a), mesh.size(a)) for d, o, a in shards)
        for piece in pieces_of(entry.shape, cuts, first, last):
            yield entry.param, entry.offset + first - low, piece


def owns(bucket: FlatBucket, layout: Layout, param: str) -> bool:
    """Tell whether this rank stores its box of a parameter: each element is stored once, of a tied
    parameter by its first home."""
    return bucket.first_home and mesh.owns(bucket.differs_over(param))


def owns_whole(bucket: FlatBucket) -> bool:
    """Tell whether this rank stores what all ranks of the bucket hold whole."""
    return bucket.first_home and mesh.owns(mesh.names(*mesh.PIPELINE))


def view(flat: Tensor, start: int, piece: Piece) -> Tensor:
    """The piece's box in a flat shard."""
    begin = start + piece.start
    return flat[begin : begin + math.prod(piece.local)].view(piece.local)[piece.slices]
