"""Integer programs that one cluster leaves for others, against programs posed anew."""

from collections.abc import Hashable, Iterator

import pytest

from meshwright.ir.mesh import Mesh, compute_mesh
from meshwright.ir.traced import Traced
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.sharding.chain import Posed, ShardedModel, shard_model
from meshwright.planner.sharding.ilp import Program

# Links and rates differ; the last is the first once more, whose programs have other prices now.
CLUSTERS = ("h200:8", "rtx4090:8", "h200:8")


def placed(traced: Traced, mesh: Mesh, cluster: Cluster, posed: dict | None) -> ShardedModel:
    return shard_model(
        traced.segmented, traced.joints, mesh=mesh, cluster=cluster, micro_batch=1, seq=4096,
        num_microbatches=8, price=None, posed=posed,
    )  # fmt: skip


def programs(posed: dict[Hashable, Posed]) -> Iterator[list[Program]]:
    """Yield the programs of equal demands."""
    found = (each for left in posed.values() for each in left.programs.values())
    return (equal for each in found for equal in each.values())


@pytest.mark.parametrize(
    ("mesh", "ways"), [(compute_mesh(tensor=2), 1), (compute_mesh(tensor=2, context=2), 2)], ids=str
)
def test_a_cluster_is_answered_by_the_programs_of_others(
    tiny: Traced, mesh: Mesh, ways: int
) -> None:
    posed: dict[Hashable, Posed] = {}
    for name in CLUSTERS:
        cluster = parse_cluster(name)
        assert placed(tiny, mesh, cluster, posed) == placed(tiny, mesh, cluster, None), name
    assert max(map(len, programs(posed))) == ways, "each way of moving values is posed once"
