"""Where axes lie: which of pp and dp is outermost, and what that does to their links."""

import pytest

from meshwright.ir.mesh import DATA, ROLES, Mesh, make_mesh
from meshwright.planner.hardware.cluster import COLLECTIVES
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.hardware.topology import Links, strided_us

CLUSTERS = ("h100:8x4", "h200:4x8", "a100:8x3", "mi300x:8x2", "rtx4090:4x4", "cpu:2x6")
SIZES = (16.0, 1e5, 3e7, 2e9)


def _roles(mesh: Mesh) -> dict[str, int]:
    return {ROLES[name]: size for name, size in mesh.axes}


def meshes(devices: int) -> list[Mesh]:
    sizes = [n for n in range(1, devices + 1) if devices % n == 0]
    return [
        Mesh((("pp", pp), ("dp", devices // pp // tp), ("tp", tp)))
        for tp in (1, 2)
        for pp in sizes
        if devices % (pp * tp) == 0
    ]


@pytest.mark.parametrize("name", CLUSTERS)
def test_reductions_over_dp_take_no_longer_with_pp_outermost(name: str) -> None:
    """Bounds count on it."""
    cluster = parse_cluster(name)
    for mesh in meshes(cluster.num_devices):
        one, two = (Links(cluster, make_mesh(_roles(mesh), ROLES[outer])) for outer in ("pp", "dp"))
        for kind in set(COLLECTIVES) - {"send_recv"}:
            for size in SIZES:
                assert one.group_us(kind, size, DATA) <= two.group_us(kind, size, DATA), (
                    mesh,
                    kind,
                )


def test_a_pipeline_inside_a_node_sends_over_its_links() -> None:
    cluster = parse_cluster("h100:8x4")
    mesh = Mesh((("pp", 4), ("dp", 4), ("tp", 2)))
    far, near = (Links(cluster, make_mesh(_roles(mesh), ROLES[outer])) for outer in ("pp", "dp"))
    alone = Links(parse_cluster("h100:8"), Mesh((("pp", 4), ("dp", 1), ("tp", 2))))
    for source in range(3):
        assert near.transfer_us(1e8, source, source + 1) == alone.transfer_us(1e8, 0, 1)
        assert far.transfer_us(1e8, source, source + 1) > 2 * alone.transfer_us(1e8, 0, 1)
        assert far.least_transfer_us(1e8, source, source + 1) == alone.transfer_us(1e8, 0, 1)


def test_a_ring_over_nodes_pays_for_every_rank_and_a_tree_for_every_doubling() -> None:
    """NCCL's model: a layer of a 70B gathered over 1,024 devices takes half as long again."""
    cluster = parse_cluster("h100:8x128")
    link = cluster.levels[1]
    rate = 8 * link.bytes_per_s * link.share(128)
    gathered = strided_us(cluster, "all_gather", 1.7e9, 1024, 1)
    bytes_us = 1.7e9 * 1023 / 1024 / rate * 1e6
    ll128 = bytes_us / 0.92 + 896 * 1.9 + 127 * 4.0
    assert gathered == pytest.approx(link.alpha_us + ll128)
    few = strided_us(cluster, "all_reduce", 16.0, 1024, 1)
    assert few == pytest.approx(link.alpha_us + 2 * (7 * 1.2 + 7 * 8.5), rel=0.01)
    assert (
        strided_us(cluster, "send_recv", 1e8, 2, 8) == link.alpha_us + 1e8 / link.bytes_per_s * 1e6
    )


def test_a_send_that_crosses_nodes_for_some_ranks_is_as_slow_as_theirs() -> None:
    """Three stages on nodes of four, dp outermost: stages 0 and 1 of the second replica are ranks 3
    and 4."""
    cluster = parse_cluster("h100:4x3")
    links = Links(cluster, Mesh((("dp", 4), ("pp", 3), ("tp", 1))))
    inside = Links(parse_cluster("h100:3"), Mesh((("pp", 3),))).transfer_us(1e8, 0, 1)
    assert links.transfer_us(1e8, 0, 1) > 2 * inside


def test_a_cloud_fabric_costs_a_latency_for_each_node() -> None:
    """Its published readings of all_gather, 223, 124 and 44 GB/s over 2, 16 and 64 nodes, are of
    messages of 1 GB within a third."""
    times, large = [], []
    for nodes in (2, 4, 16, 64):
        cluster, group = parse_cluster(f"h100:8x{nodes},network=efa"), 8 * nodes
        ring_us, _ = cluster.levels[1].hop_us
        wire_us = 1e9 * (1 - 1 / group) / 320e9 * 1e6
        least_us = cluster.levels[1].alpha_us + wire_us + nodes * ring_us
        us = strided_us(cluster, "all_gather", 1e9, group, 1)
        assert us >= least_us
        assert us == pytest.approx(least_us, rel=0.06)
        times.append(us)
        large.append(strided_us(cluster, "all_gather", 64e9, group, 1) / 64e9)
    assert 3e3 < times[0] < 4.5e3 and 7e3 < times[2] < 11e3 and 20e3 < times[3] < 33e3
    assert large[-1] < 1.25 * large[0]
    cluster = parse_cluster("h100:8x4,network=efa")  # of nodes that hold one rank, one link is left
    assert strided_us(cluster, "all_gather", 1e6, 4, 8) == pytest.approx(60 + 3 * 380, rel=0.02)


def test_an_all_reduce_over_a_cloud_fabric_takes_a_tree() -> None:
    for nodes in (2, 4, 8, 32):
        cluster, group = parse_cluster(f"h100:8x{nodes},network=efa"), 8 * nodes
        ring_us, tree_us = cluster.levels[1].hop_us
        alpha_us = cluster.levels[1].alpha_us
        us = strided_us(cluster, "all_reduce", 16.0, group, 1)
        depth = (nodes - 1).bit_length()
        assert us == pytest.approx(alpha_us + 2 * (depth * tree_us + 7 * 1.2), rel=0.01)
        assert us < alpha_us + 2 * (nodes - 1) * ring_us


def test_a_network_changes_what_crosses_nodes_alone() -> None:
    here, there = (parse_cluster(f"h100:8x4{kind}") for kind in ("", ",network=efa"))
    assert strided_us(here, "all_gather", 1e8, 8, 1) == strided_us(there, "all_gather", 1e8, 8, 1)
    assert strided_us(here, "all_gather", 1e8, 4, 8) < strided_us(there, "all_gather", 1e8, 4, 8)
    assert parse_cluster("h100:8,network=efa").rates == parse_cluster("h100:8").rates
    tuned = parse_cluster("h100:8x4,network=roce")
    assert strided_us(here, "all_gather", 1e8, 4, 8) == strided_us(tuned, "all_gather", 1e8, 4, 8)
