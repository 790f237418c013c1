"""Where the endpoint of a live run is: OUT/control.json, which its owner alone can read."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "control.json"


@dataclass(frozen=True)
class Address:
    """host: as the scheduler or the machine names it. port: on its loopback. token: what a request
    must show. job: of Slurm, "" without one. pid: of rank 0."""

    host: str
    port: int
    token: str
    job: str
    pid: int


def write_address(out: Path, address: Address) -> None:
    """Write the address so that from its first byte on nobody but the owner can read it."""
    path = out / FILE
    part = out / f".{FILE}.{os.getpid()}"
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps(asdict(address)) + "\n")
    part.replace(path)


def read_address(out: Path) -> Address | None:
    """Return the address of the run in a folder; None where none is live."""
    try:
        return Address(**json.loads((out / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def remove_address(out: Path) -> None:
    """Remove the address of a run that ended."""
    (out / FILE).unlink(missing_ok=True)
