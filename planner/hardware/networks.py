"""Kinds of network between nodes, which differ in what more nodes cost.

A catalogue part has the first kind. `network=KIND` behind its name gives it another one of the same
cards: `h100:8x16,network=efa`. The latency and the bandwidth of a card stay as the part has
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .cluster import Cluster, ClusterError, LinkLevel, Sources


@dataclass(frozen=True)
class Network:
    """What LinkLevel has of more nodes, and where it is from."""

    by_nodes: tuple[tuple[int, float], ...]
    hop_us: tuple[float, ...]
    sources: Sources


# Of the bandwidth over four nodes: 360, 345, 320, 300, 280 and 260 GB/s at 4, 8, ... 128.
BY_NODES = ((4, 1.0), (8, 0.958), (16, 0.889), (32, 0.833), (64, 0.778), (128, 0.722))
RAILS = (
    "published: reduce_scatter over 4 to 128 nodes of H100s, 360 to 260 GB/s "
    "(github.com/NVIDIA/nccl, issue 1229)"
)
_LLAMA3 = (
    "assumed: as rail-optimised InfiniBand, to which the network of Llama 3, RDMA over Ethernet, "
    "was tuned equal (arXiv 2407.21783, section 3.3.1)"
)
_PLAYBOOK = (
    "published: steps of models of 1B and 3B whose layers are split over two and four nodes of "
    "H100s with EFA (huggingface.co/spaces/nanotron/ultrascale-playbook; "
    "benchmarks/published_nanotron.py)"
)
NETWORKS: Mapping[str, Network] = {
    "infiniband": Network(BY_NODES, (), (("by_nodes", RAILS),)),
    "roce": Network(BY_NODES, (), (("by_nodes", _LLAMA3),)),
    # A collective of a split layer takes 0.78 ms over two nodes and 1.64 over four. Readings of
    # all_gather over 2 to 64 nodes, 223 to 44 GB/s, agree within 30% if they are of 1 GB, which is
    # not told. Both are latencies: gradients of gigabytes travel at the cards' bandwidth.
    "efa": Network((), (380.0, 250.0), (("hop_us", _PLAYBOOK),)),
}


def with_network(cluster: Cluster, kind: str) -> Cluster:
    """Return a cluster whose nodes another kind of network joins; one node without a network as it
    is, so that nodes can be swept. Raises ClusterError."""
    if kind not in NETWORKS:
        raise ClusterError(
            f"cluster {cluster.name}: network {kind!r} is unknown; give {', '.join(NETWORKS)}"
        )
    if len(cluster.levels) > 1:
        return replace(cluster, levels=(*cluster.levels[:-1], _joined(cluster.levels[-1], kind)))
    if cluster.nodes == 1:
        return cluster
    raise ClusterError(
        f"cluster {cluster.name}: {cluster.nodes} nodes, and its only link, "
        f"{cluster.levels[0].name}, is inside one; add [[levels]] for the network, or drop "
        f"network={kind}"
    )


def _joined(level: LinkLevel, kind: str) -> LinkLevel:
    network = NETWORKS[kind]
    sources = {key: said for key, said in level.sources if key not in ("by_nodes", "hop_us")}
    if kind != level.name and "bytes_per_s" in sources:
        sources["bytes_per_s"] = f"assumed: as of {level.name}; {sources['bytes_per_s']}"
    sources |= dict(network.sources)
    return replace(
        level,
        name=kind,
        by_nodes=network.by_nodes,
        hop_us=network.hop_us,
        sources=tuple(sources.items()),
    )
