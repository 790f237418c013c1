"""A full mesh of links without a switch, against an enumeration of its links."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise, permutations

import pytest

from meshwright.ir.mesh import Mesh
from meshwright.planner.hardware.cluster import WIRE_SHARE, Cluster, collective_us
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.hardware.topology import Links, strided_us

BOARDS = ("h200-4gpu", "h100-4gpu", "a100-4gpu", "mi300x")
GROUPS = [
    (board, n) for board in BOARDS for n in range(2, parse_cluster(board).level(1).full_mesh + 1)
]
SIZE = 2**28


def bare(name: str, inner: float = 0.0) -> Cluster:
    """A cluster whose links have no latency and no curves. inner: bytes a second of the first."""
    cluster = parse_cluster(name)
    first, *others = (replace(v, alpha_us=0.0, curves=()) for v in cluster.levels)
    first = replace(first, bytes_per_s=inner or first.bytes_per_s)
    return replace(cluster, levels=(first, *others))


def busiest(ways: Iterable[tuple[int, ...]]) -> float:
    """Bytes on the busiest link of a mesh where one byte is spread evenly over the ways."""
    ways = list(ways)
    loads = Counter(link for way in ways for link in pairwise(way))
    return max(loads.values()) / len(ways)


def rings(members: int) -> list[tuple[int, ...]]:
    """Every directed ring over the members, each once."""
    return [(0, *others, 0) for others in permutations(range(1, members))]


@pytest.mark.parametrize(("board", "group"), GROUPS)
def test_rings_in_every_order_fill_the_links_of_a_group(board: str, group: int) -> None:
    cluster = bare(f"{board}:{parse_cluster(board).devices_per_node}")
    link = cluster.levels[0]
    pair = link.bytes_per_s / (link.full_mesh - 1)
    rate = pair / busiest(rings(group))  # of a byte that goes round
    assert rate == pytest.approx(pair * (group - 1))  # no more leaves a member
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        seen = collective_us(cluster, kind, SIZE, group)
        assert seen == pytest.approx(WIRE_SHARE[kind](group) * SIZE / rate * 1e6)


@pytest.mark.parametrize(("board", "group"), GROUPS)
def test_an_exchange_takes_one_link_a_pair(board: str, group: int) -> None:
    cluster = bare(board + f":{group}")
    link = cluster.levels[0]
    pair = link.bytes_per_s / (link.full_mesh - 1)
    sent = SIZE / group / pair * 1e6
    assert collective_us(cluster, "all_to_all", SIZE, group) == pytest.approx(sent)
    assert collective_us(cluster, "send_recv", SIZE, group) == pytest.approx(SIZE / pair * 1e6)


def test_a_group_of_a_board_is_as_fast_wherever_it_lies() -> None:
    cluster = bare("h200-4gpu:4x2")
    apart, near = (strided_us(cluster, "all_gather", SIZE, 2, stride) for stride in (2, 1))
    assert apart == near == pytest.approx(SIZE / 2 / (333.9e9 / 3) * 1e6)
    links = Links(cluster, Mesh((("pp", 2), ("dp", 2), ("tp", 2))))
    assert links.group_us("all_gather", SIZE, "data") == near
    sends = Links(bare("h200-4gpu:4"), Mesh((("pp", 4), ("dp", 1), ("tp", 1))))
    assert sends.transfer_us(SIZE, 1, 2) == pytest.approx(SIZE / (333.9e9 / 3) * 1e6)


@pytest.mark.parametrize("members", [2, 3, 4])
def test_rings_over_nodes_pass_a_board_by_its_links(members: int) -> None:
    """Each of the network cards has its own ring, which passes the members in another order."""
    cluster = bare("h200-4gpu:4x2", inner=60e9)  # slower than the network cards together
    pair = 60e9 / 3
    through = min(60e9, pair / busiest(permutations(range(members))))
    group, stride = 2 * members, 1 if members > 2 else 2
    seen = strided_us(replace(cluster, devices_per_node=members * stride), "all_gather", SIZE,
                      group, stride)  # fmt: skip
    wire = (group - 1) / group * SIZE / through * 1e6
    assert wire < seen < 1.1 * wire + 100


def test_the_whole_board_and_a_switch_are_alike() -> None:
    board, node = parse_cluster("h200-4gpu:4"), parse_cluster("h200:4")
    for kind in set(WIRE_SHARE) - {"send_recv"}:
        assert collective_us(board, kind, SIZE, 4) == collective_us(node, kind, SIZE, 4)
        assert collective_us(board, kind, SIZE, 2) > 2 * collective_us(node, kind, SIZE, 2)
