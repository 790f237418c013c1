"""Runs drawn: loss, throughput, memory, and predicted beside measured, from their folders."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class PlotError(ValueError):
    """A run without a log, or no library to draw with."""


def plot_runs(runs: Sequence[Path], out: Path) -> None:
    """Draw runs into one picture; the suffix of `out` says which kind (png, svg, pdf).

    Raises PlotError where a run holds no metrics.jsonl, or matplotlib is missing.
    """
    pyplot = _pyplot(out)
    rows = {run: _rows(run) for run in runs}
    figure, axes = pyplot.subplots(2, 2, figsize=(12, 8), layout="constrained")
    panels = (
        (axes[0][0], "loss", "loss, nats a token", 1.0),
        (axes[0][1], "tokens_per_s", "tokens a second", 1.0),
        (axes[1][0], "peak_memory_bytes", "peak memory, GiB", 2.0**30),
    )
    for axis, key, title, unit in panels:
        for run in runs:
            _line(axis, rows[run], key, unit, run.name)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
    for run in runs:
        _line(axes[0][0], rows[run], "eval_loss", 1.0, f"{run.name}, held out", marker="o")
    for axis in (axes[0][1], axes[1][0]):
        axis.set_ylim(bottom=0)
    axes[0][0].legend()
    _fidelity(axes[1][1], runs)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)


def _pyplot(out: Path) -> Any:
    try:
        import matplotlib
    except ImportError:
        raise PlotError(f"drawing {out} needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _rows(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise PlotError(f"{run} holds no metrics.jsonl; give the folder of a run") from None
    except ValueError as error:
        raise PlotError(f"{path}: not JSON lines: {error}") from None


def _line(axis: Any, rows: list[dict], key: str, unit: float, label: str, marker: str = "") -> None:
    found = [(row["step"], row[key] / unit) for row in rows if row.get(key) is not None]
    if found:
        style = {"marker": marker, "linestyle": "--"} if marker else {"linewidth": 1.2}
        axis.plot(*zip(*found, strict=True), label=label, **style)


def _fidelity(axis: Any, runs: Sequence[Path]) -> None:
    """Bars of predicted over measured, one group a run."""
    axis.set(title="predicted / measured", ylabel="ratio")
    axis.axhline(1.0, color="grey", linewidth=0.8)
    labels: list[str] = []
    for run in runs:
        path = run / "fidelity.json"
        for name, row in (json.loads(path.read_text()) if path.exists() else {}).items():
            axis.bar(len(labels), row["predicted"] / row["measured"])
            labels.append(f"{run.name}\n{name.rpartition('_')[0].replace('_', ' ')}")
    if not labels:
        axis.text(0.5, 0.5, "no run has ended with a comparison", ha="center", va="bottom",
                  transform=axis.transAxes)  # fmt: skip
    axis.set_xticks(range(len(labels)), labels)
