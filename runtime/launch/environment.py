"""A rank among others, by torchrun's environment variables; one rank where they are not set."""

import os


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Return the rank among those of this machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world() -> int:
    """Return the number of ranks."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world() -> int:
    """Return the number of ranks of this machine; all are, where nothing else is said."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world()))
