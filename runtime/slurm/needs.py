"""How many nodes a program needs."""

import json
from pathlib import Path

from .scheduler import SlurmError


def nodes_of(program: Path) -> int:
    """Return the nodes that a program is planned for. Raises SlurmError for none that says it."""
    try:
        needs = json.loads((program / "needs.json").read_text())
        return int(-(-needs["ranks"] // needs["devices_per_node"]))
    except (OSError, ValueError, KeyError):
        raise SlurmError(
            f"{program / 'needs.json'} does not say for how many nodes the program is; compile the "
            "plan again"
        ) from None
