"""Checks of Triton kernels in a process of their own: interpreted, as on machines without a GPU.

Triton reads TRITON_INTERPRET when it is imported.
"""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux only")


def run(script: str, **environment: str) -> None:
    """Run a script that prints "equal" when all is well.

    Skips where the interpreter of Triton, which takes arrays of one element for numbers, meets a
    numpy (2.5 and later) that does not.
    """
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip(f"the interpreter of Triton {version('triton')} needs numpy below 2.5")
    assert done.returncode == 0 and "equal" in done.stdout, done.stderr


def run_interpreted(script: str) -> None:
    run(script, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
