"""Nodes of one HGX board of four NVIDIA SXM cards, joined pair by pair without an NVLink switch.

Each card has a third of its NVLinks to each other card: 6 of 18 on Hopper, 4 of 12 on the A100. All
else is as on the node of eight cards.
"""

from dataclasses import replace

from .cluster import Cluster, LinkLevel
from .devices_sxm import A100, GIB, H100, H200

_BLOG = "developer.nvidia.com/blog, introducing HGX H100, 4-GPU: NVLink from GPU to GPU, no switch"
_A100 = "NVIDIA HGX software guide, HGX A100 4-GPU: each GPU joined to each other"
_LENOVO = "Lenovo Press LP1611, HGX H200 141GB 700W 4-GPU board"


def _mesh(switched: LinkLevel, full_mesh: str) -> LinkLevel:
    """Return the links of a board. Curves over all four stay: their rings use every link."""
    curves = tuple(c for c in switched.curves if c.group == 4 and c.collective != "send_recv")
    said = dict(switched.sources) | {"full_mesh": full_mesh}
    if curves:
        said |= {
            key: f"assumed: as through a switch; {said[key].replace(': ', ' by ', 1)}" for key in
            ("alpha_us", "bytes_per_s", "curves")
        }  # fmt: skip
    return replace(switched, curves=curves, span=4, full_mesh=4, sources=tuple(said.items()))


def _board(node: Cluster, board: str, full_mesh: str) -> Cluster:
    said = dict(node.sources) | {
        "devices_per_node": board,
        "host_memory_bytes": "assumed: half of that of a node of eight",
    }
    return replace(
        node,
        name=f"{node.name}-4gpu",
        devices_per_node=4,
        levels=(_mesh(node.levels[0], full_mesh), replace(node.levels[1], span=4)),
        host_memory_bytes=1024 * GIB,
        sources=tuple(said.items()),
    )


H200_BOARD = _board(H200, f"published: four ({_LENOVO})", f"assumed: as HGX H100 ({_BLOG})")
H100_BOARD = _board(H100, f"published: four ({_BLOG})", f"published: {_BLOG}")
A100_BOARD = _board(A100, f"published: four ({_A100})", f"published: {_A100}")
