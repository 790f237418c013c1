"""The two rearrangements behind every collective, on one process."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.runtime.engine import collectives
from meshwright.runtime.engine.collectives import _join, _split
from meshwright.runtime.engine.inductor import compile_whole


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


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    """A group of one rank."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.long
def test_compiled_collectives_keep_truth_values(alone: dist.ProcessGroup) -> None:
    """torch's own hand out integers for them, of which `~` is true whatever they are."""

    def not_shown(seen: Tensor) -> tuple[Tensor, Tensor]:
        gathered = torch.ops.aten.bitwise_not.default(collectives.all_gather(seen, 1, 1, alone))
        moved = torch.ops.aten.bitwise_not.default(collectives.all_to_all(seen, 0, 1, 1, 1, alone))
        return gathered, moved

    seen = torch.tensor([[True, False, True, False]])
    for made in compile_whole(not_shown)(seen):
        assert made.dtype is torch.bool and torch.equal(made, ~seen)
