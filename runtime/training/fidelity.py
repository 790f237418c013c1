"""Predicted beside measured, at the end of every run: printed, and kept as OUT/fidelity.json."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from ..engine import mesh
from .fidelity_file import predicted

# The first steps compile and warm caches; a run of fewer steps has nothing to compare.
WARMUP_STEPS = 3


def compare(
    folder: Path, step_ms: Sequence[float], peak_bytes: int, device: torch.device
) -> dict[str, dict[str, float]]:
    """{what: {predicted, measured, error}} of a program's run; every rank takes part.

    step_ms: of this rank's steps in order; their median after WARMUP_STEPS counts. peak_bytes: most
    memory of this rank; the largest rank counts, and on CUDA only, as the CPU's is of the process.
    """
    if device.type == "cuda" and mesh.world() > 1:
        largest = torch.tensor([peak_bytes], dtype=torch.int64, device=device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        peak_bytes = int(largest)
    measured: dict[str, float] = {}
    if len(step_ms) > WARMUP_STEPS:
        measured["step_us"] = 1e3 * statistics.median(step_ms[WARMUP_STEPS:])
    if device.type == "cuda":
        measured["peak_bytes"] = float(peak_bytes)
    found, numbers = {}, predicted(folder)
    for name, value in measured.items():
        wanted = numbers.get(f"predicted_{name}")
        if wanted:
            error = wanted / value - 1
            found[name] = {"predicted": wanted, "measured": value, "error": error}
    return found


def lines(found: dict[str, dict[str, float]], planned: str = "") -> list[str]:
    """One line of text a quantity. planned: the plan's optimizer, where the run has another."""
    of = f" for {planned}" if planned else ""
    words = {
        "step_us": ("step", 1e3, "ms", ("slower", "faster")),
        "peak_bytes": ("peak memory", 2.0**30, "GiB", ("more", "less")),
    }
    out = []
    for name, row in found.items():
        what, unit, symbol, ways = words[name]
        out.append(
            f"{what}: measured {row['measured'] / unit:,.2f} {symbol}, predicted "
            f"{row['predicted'] / unit:,.2f} {symbol}{of}: {_beside(row, *ways)}"
        )
    return out


def _beside(row: dict[str, float], above: str, below: str) -> str:
    """How what was measured compares with what was predicted, in words."""
    share = row["measured"] / row["predicted"] - 1
    if abs(share) < 0.0005:
        return "as predicted"
    return f"{abs(share):.1%} {above if share > 0 else below} than predicted"
