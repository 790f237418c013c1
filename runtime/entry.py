"""The door that emitted programs name: `from runtime.entry import main`."""

import sys
from pathlib import Path

from .roles import AGENT, SENTINEL, SUPERVISE


def main(folder: Path) -> None:
    """Run the program in `folder` as the command line says: as a rank, as what starts the ranks of
    one node of a job, or as what watches over a job's nodes, or over that."""
    role = sys.argv[1] if len(sys.argv) > 1 else ""
    if role == SUPERVISE:
        from .slurm.supervisor import main as supervise

        sys.exit(supervise(folder, sys.argv[2:]))
    if role == SENTINEL:
        from .slurm.sentinel import main as watch

        sys.exit(watch(sys.argv[2:]))
    if role == AGENT:
        from .slurm.agent import main as agent

        sys.exit(agent(folder, sys.argv[2:]))
    from .launch.entry import main as rank

    rank(folder)
