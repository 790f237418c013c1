"""Kinds of network between nodes, which differ in what more nodes take from their bandwidth.

A catalogue part has the first kind. `network=KIND` behind its name gives it another one of the same
cards: `h100:8x16,network=efa`. The latency and the bandwidth of a card stay as the part has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .cluster import Cluster, ClusterError, LinkLevel

ByNodes = tuple[tuple[int, float], ...]

_PLAYBOOK = (
    "published: NCCL over up to 64 nodes of eight H100s with EFA, {what} of 256 MB at {low} to "
    "{high} GB/s on average, jobs 3 to 14 times apart from 4 nodes on "
    "(huggingface.co/spaces/nanotron/ultrascale-playbook); assumed of other cards"
)


@dataclass(frozen=True)
class Network:
    """Shares of bandwidth by nodes, as LinkLevel has them, and where they are from."""

    by_nodes: ByNodes
    tree_by_nodes: ByNodes
    source: str
    tree_source: str = ""


# Of the bandwidth over four nodes: 360, 345, 320, 300, 280 and 260 GB/s at 4, 8, ... 128.
BY_NODES = ((4, 1.0), (8, 0.958), (16, 0.889), (32, 0.833), (64, 0.778), (128, 0.722))
RAILS = (
    "published: reduce_scatter over 4 to 128 nodes of H100s, 360 to 260 GB/s "
    "(github.com/NVIDIA/nccl, issue 1229)"
)
NETWORKS: Mapping[str, Network] = {
    "infiniband": Network(BY_NODES, (), RAILS),
    "roce": Network(
        BY_NODES,
        (),
        "assumed: as rail-optimised InfiniBand, to which Llama 3's network of RDMA over Ethernet "
        "was tuned equal (arXiv 2407.21783, section 3.3.1)",
    ),
    # all_gather at 185, 119, 69, 55, 28 and 11.0 GB/s over 2, 4, ... 64 nodes, and all_reduce at
    # 160, 99.6, 84.7, 64.9 and 32.9 over 4, 8, ... 64, as shares of 0.8 of 400 Gb/s a device, less
    # what topology.py counts for hops.
    "efa": Network(
        ((2, 0.634), (4, 0.408), (8, 0.236), (16, 0.197), (32, 0.0997), (64, 0.0381)),
        ((2, 1.0), (4, 0.63), (8, 0.388), (16, 0.33), (32, 0.252), (64, 0.127)),
        _PLAYBOOK.format(what="all_gather", low=185, high=11),
        _PLAYBOOK.format(what="all_reduce", low=362, high=33),
    ),
}


def with_network(cluster: Cluster, kind: str) -> Cluster:
    """Return a cluster whose nodes another kind of network joins; of one node as it is, so that
    nodes can be swept. Raises ClusterError."""
    if kind not in NETWORKS:
        raise ClusterError(
            f"cluster {cluster.name}: network {kind!r} is unknown; give {', '.join(NETWORKS)}"
        )
    if cluster.nodes == 1:
        return cluster
    return replace(cluster, levels=(*cluster.levels[:-1], _joined(cluster.levels[-1], kind)))


def _joined(level: LinkLevel, kind: str) -> LinkLevel:
    network = NETWORKS[kind]
    sources = dict(level.sources)
    if kind != level.name and "bytes_per_s" in sources:
        sources["bytes_per_s"] = f"assumed: as of {level.name}; {sources['bytes_per_s']}"
    sources |= {"by_nodes": network.source, "tree_by_nodes": network.tree_source}
    return replace(
        level,
        name=kind,
        by_nodes=network.by_nodes,
        tree_by_nodes=network.tree_by_nodes,
        sources=tuple((key, said) for key, said in sources.items() if said),
    )
