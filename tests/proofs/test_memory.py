"""What a process keeps of the memory that tensors give back."""

import subprocess
import sys

import pytest

_FAULTS = """
import resource
import torch
from meshwright.proof.memory import keep_freed

{keeps}
for _ in range(12):
    several = [torch.ones(2**22) for _ in range(4)]  # 16 MiB each
    larger = torch.ones(2**24)
    del several, larger
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the GNU C library")
def test_tensors_take_the_pages_of_those_before() -> None:
    kept, given_back = (_faults(keeps) for keeps in ("keep_freed()", ""))
    assert kept < given_back / 2


def _faults(keeps: str) -> int:
    """Return how many pages a process was given."""
    words = [sys.executable, "-c", _FAULTS.format(keeps=keeps)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
