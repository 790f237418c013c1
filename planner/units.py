"""Bytes as text for people."""


def gib(size: float) -> str:
    """A size in bytes as GiB, or as MiB where it is below a quarter of one GiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"
