"""The network interface by which ranks of this machine reach those of others."""

import fcntl
import os
import socket
import struct

VARIABLE = "GLOO_SOCKET_IFNAME"
_ADDRESS = 0x8915  # SIOCGIFADDR, of linux/sockios.h
_NAME_BYTES = 256


def name_interface(address: str, port: int) -> None:
    """Have gloo use the interface that leads to the rendezvous, unless the user named one. By
    itself it takes that of the machine's own name, which is often loopback. NCCL looks for its own.
    """
    if VARIABLE not in os.environ and (name := interface_to(address, port)):
        os.environ[VARIABLE] = name


def interface_to(address: str, port: int) -> str:
    """Return the interface that packets to an address leave by, "" where that cannot be told."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))  # of datagrams this sends nothing
            own = probe.getsockname()[0]
            return next((name for _, name in socket.if_nameindex() if _has(probe, name, own)), "")
    except OSError:
        return ""


def _has(probe: socket.socket, name: str, address: str) -> bool:
    try:
        reply = fcntl.ioctl(probe.fileno(), _ADDRESS, struct.pack(f"{_NAME_BYTES}s", name.encode()))
    except OSError:
        return False
    return socket.inet_ntoa(reply[20:24]) == address
