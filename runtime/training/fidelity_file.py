"""What a program's plan predicted, read. Torch is not needed."""

import json
from pathlib import Path


def predicted(program: Path) -> dict[str, float]:
    """Return the plan's predicted numbers by name; none where the program holds no report."""
    path = program / "report.json"
    return json.loads(path.read_text())["predicted"] if path.exists() else {}
