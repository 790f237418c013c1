"""A real Slurm of four nodes for these tests; without one they are skipped, with the reason."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import slurm_here


@pytest.fixture(scope="session")
def slurm() -> Iterator[None]:
    """Give the commands of a Slurm that runs here, started unless it is up."""
    if lacks := slurm_here.missing():
        pytest.skip(f"no Slurm here: this machine lacks {lacks}")
    if not slurm_here.is_up():
        slurm_here.start(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(slurm_here.CONF))
        # Processes of an earlier start of a test know other places.
        for name in [name for name in os.environ if name.startswith("SLURM_JOB")]:
            patch.delenv(name)
        yield
