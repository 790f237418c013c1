"""Where the ranks of an attempt meet."""

import socket
import zlib

from ..host import host_name
from .scheduler import Allocation, address_of

# Ports that no system gives out by itself, where nothing tells which are free.
_FIRST, _PORTS = 20000, 12000


def rendezvous(node: str, allocation: Allocation, attempt: int) -> tuple[str, int]:
    """Return the address of a node, and a port there: a free one of this machine, else one that no
    other attempt, or job, is likely to have."""
    address = address_of(node)
    if node == host_name():
        with socket.socket() as probe:
            probe.bind(("", 0))
            return address, probe.getsockname()[1]
    key = f"{allocation.name}.{attempt}"
    return address, _FIRST + zlib.crc32(key.encode()) % _PORTS
