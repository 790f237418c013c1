"""Checks of Triton kernels in a process of their own: interpreted, as on machines without a GPU."""

import os
import subprocess
import sys

import pytest

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux only")


def run(script: str, **environment: str) -> None:
    """Run a script that prints "equal" when all is well."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "equal" in done.stdout, done.stderr


def run_interpreted(script: str) -> None:
    run(script, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
