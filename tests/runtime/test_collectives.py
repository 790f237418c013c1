"""The two rearrangements behind every collective, on one process."""

import pytest
import torch

from meshwright.runtime.engine import collectives
from meshwright.runtime.engine.collectives import _join, _split


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("outer", [1, 2])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_split_and_join_are_inverses(dim: int, outer: int, ranks: int) -> None:
    x = torch.arange(12 * 12 * 12).view(12, 12, 12)
    parts = _split(x, dim, outer, ranks)
    assert parts.shape[0] == ranks and parts.shape[1 + dim] == 12 // ranks
    assert torch.equal(_join(parts, dim, outer), x)


def test_a_strided_shard_takes_its_part_of_every_block() -> None:
    thirds = torch.arange(12)  # q, k and v of four rows each, over two ranks
    assert collectives.shard(thirds, 0, 3, 0, 2).tolist() == [0, 1, 4, 5, 8, 9]
    assert collectives.shard(thirds, 0, 3, 1, 2).tolist() == [2, 3, 6, 7, 10, 11]


def test_one_rank_has_nothing_to_do() -> None:
    x = torch.randn(4, 4)
    assert collectives.all_reduce(x, "lse", None) is x
    assert collectives.all_gather(x, 0, 1, None) is x
    assert collectives.reduce_scatter(x, 1, 1, None) is x
    assert collectives.all_to_all(x, 0, 1, 1, 1, None) is x


@pytest.mark.parametrize("outer", [1, 3])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_mirrored_split_and_join_are_inverses(dim: int, outer: int) -> None:
    x = torch.arange(12 * 12 * 12).view(12, 12, 12)
    parts = _split(x, dim, outer, 2, mirrored=True)
    assert torch.equal(_join(parts, dim, outer, mirrored=True), x)


def test_a_mirrored_shard_is_a_chunk_and_its_mirror_image() -> None:
    found = [collectives.shard(torch.arange(8), 0, 1, k, 2, mirrored=True) for k in range(2)]
    assert [x.tolist() for x in found] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    rows = torch.arange(8)  # two rows of four, each mirrored
    assert collectives.shard(rows, 0, 2, 0, 2, mirrored=True).tolist() == [0, 3, 4, 7]
