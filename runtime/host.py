"""The name of this machine."""

import os
import socket


def host_name() -> str:
    """Return the scheduler's name of this machine where it gave one, as several of its nodes may be
    one machine; else the machine's own."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
