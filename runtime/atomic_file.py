"""A file that is there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Write into what is returned: it becomes `path`, on disk, when the block ends well."""
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, text: str) -> None:
    """Whole or not at all, also across a power cut."""
    with atomic_file(path) as file:
        file.write(text.encode())
