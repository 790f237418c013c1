"""Runs drawn: loss, rate, norm, throughput, memory, and predicted beside measured."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

# What lies on the x axis, by name: its label, and how many of the logged units make one.
AXES = {"steps": ("step", 1.0), "tokens": ("tokens, millions", 1e6), "time": ("hours", 3600.0)}
# Runs of fewer steps are shown whole; of others the first share may lie above the frame.
CLIPPED_STEPS, CLIPPED_SHARE = 20, 0.05


class PlotError(ValueError):
    """A run without a log, or no library to draw with."""


@dataclass(frozen=True)
class Panel:
    """A picture of one column of the logs. unit: how many of the logged make one shown. noisy:
    smoothed, and framed by what follows the first steps; else from 0 on."""

    key: str
    title: str
    unit: float = 1.0
    noisy: bool = False


PANELS = (
    Panel("loss", "loss, nats a token", noisy=True),
    Panel("lr", "learning rate"),
    Panel("grad_norm", "gradient norm", noisy=True),
    Panel("tokens_per_s", "tokens a second"),
    Panel("peak_memory_bytes", "peak memory, GiB", 2.0**30),
)


def draw_lines(
    lines: dict[str, list[tuple[float, float]]], xlabel: str, ylabel: str, out: Path
) -> None:
    """Draw lines of (x, y) by their names, from 0 on; the suffix of `out` says which kind.

    Raises PlotError where matplotlib is missing.
    """
    pyplot = _pyplot(out)
    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for name, points in lines.items():
        axis.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    figure.savefig(out, dpi=120)
    pyplot.close(figure)


def plot_runs(
    runs: Sequence[Path],
    out: Path,
    x: str = "steps",
    smooth: int = 1,
    goodputs: Mapping[Path, float] | None = None,
) -> None:
    """Draw runs into one picture; the suffix of `out` says which kind (png, svg, pdf).

    x: of AXES. smooth: steps that a point of a noisy line is the mean of. goodputs: shares of
    wall time, of the runs that have one. Raises PlotError where a run holds no metrics.jsonl, or
    matplotlib is missing.
    """
    if smooth < 1:
        raise PlotError(f"--smooth {smooth}: at least 1 step, which smooths nothing")
    curves = {run: _Curves(_rows(run), x) for run in runs}
    pyplot = _pyplot(out)
    figure, axes = pyplot.subplots(2, 3, figsize=(16, 8), layout="constrained")
    for axis, panel in zip(axes.flat, PANELS, strict=False):
        for number, run in enumerate(runs):
            _line(axis, curves[run], panel, run.name, smooth, f"C{number}")
        axis.set(title=panel.title, xlabel=AXES[x][0])
        axis.grid(alpha=0.3)
        _frame(axis, panel, [curves[run].of(panel.key)[1] for run in runs])
    for number, run in enumerate(runs):
        held_out = curves[run].of("eval_loss")
        if held_out[0]:
            style = {"marker": "o", "markersize": 4, "linestyle": "--", "color": f"C{number}"}
            axes[0][0].plot(*held_out, label=f"{run.name}, held out", **style)
    axes[0][0].legend()
    _fidelity(axes[1][2], runs, goodputs or {})
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


class _Curves:
    """The columns of a log along an x axis."""

    def __init__(self, rows: list[dict], x: str) -> None:
        self.rows = rows
        steps = [row for row in rows if "loss" in row]
        places = {"steps": _steps, "tokens": _tokens, "time": _seconds}[x](steps)
        unit = AXES[x][1]
        self._at = {r["step"]: at / unit for r, at in zip(steps, places, strict=True)}

    def of(self, key: str) -> tuple[list[float], list[float]]:
        """Return places and values of a column, where it has one."""
        found = [r for r in self.rows if r.get(key) is not None and r["step"] in self._at]
        return [self._at[r["step"]] for r in found], [r[key] for r in found]


def _steps(rows: list[dict]) -> list[float]:
    return [row["step"] for row in rows]


def _tokens(rows: list[dict]) -> list[float]:
    """Tokens of all steps so far; summed where a log does not say them."""
    summed = accumulate(row.get("tokens") or 0 for row in rows)
    return [row.get("tokens_seen", n) for row, n in zip(rows, summed, strict=True)]


def _seconds(rows: list[dict]) -> list[float]:
    """Seconds of all starts together: a log counts from each start anew."""
    found: list[float] = []
    before = last = 0.0
    for row in rows:
        since = row.get("elapsed_s") or last + (row.get("step_ms") or 0.0) / 1e3
        if since < last:
            before += last
        last = since
        found.append(before + since)
    return found


def _line(axis: Any, curves: _Curves, panel: Panel, label: str, smooth: int, colour: str) -> None:
    places, logged = curves.of(panel.key)
    values = [value / panel.unit for value in logged]
    if panel.noisy and smooth > 1 and values:
        axis.plot(places, values, linewidth=0.6, alpha=0.3, color=colour)
        label = f"{label}, mean of {smooth} steps"
        axis.plot(places, smoothed(values, smooth), label=label, linewidth=1.4, color=colour)
    elif values:
        axis.plot(places, values, label=label, linewidth=1.2, color=colour)


def smoothed(values: Sequence[float], count: int) -> list[float]:
    """Return by place the mean of the last `count` values, of fewer at the beginning."""
    sums = [0.0, *accumulate(values)]
    starts = (max(0, end - count) for end in range(1, len(sums)))
    return [
        (sums[end] - sums[start]) / (end - start)
        for end, start in zip(range(1, len(sums)), starts, strict=True)
    ]


def _frame(axis: Any, panel: Panel, curves: list[list[float]]) -> None:
    """Let the first steps of noisy lines lie above the frame, so that the others can be read."""
    if not panel.noisy:
        axis.set_ylim(0, 1.1 * axis.dataLim.y1 if axis.dataLim.y1 > 0 else None)
        return
    if any(len(values) < CLIPPED_STEPS for values in curves):
        return
    later = [v for values in curves for v in values[int(CLIPPED_SHARE * len(values)) :]]
    low, high = min(later), max(later)
    if high < max(max(values) for values in curves):
        margin = 0.05 * (high - low) or 0.05 * abs(high)
        axis.set_ylim(low - margin, high + margin)
        axis.text(0.98, 0.97, "the first steps lie above", ha="right", va="top",
                  transform=axis.transAxes, fontsize=8, color="grey")  # fmt: skip


def _fidelity(axis: Any, runs: Sequence[Path], goodputs: Mapping[Path, float]) -> None:
    """Bars of predicted over measured, and of goodput, one group a run."""
    axis.set(title="predicted / measured", ylabel="ratio, below 1: slower or more than predicted")
    axis.axhline(1.0, color="grey", linewidth=0.8)
    labels: list[str] = []
    for number, run in enumerate(runs):
        path = run / "fidelity.json"
        for name, row in (json.loads(path.read_text()) if path.exists() else {}).items():
            axis.bar(len(labels), row["predicted"] / row["measured"], color=f"C{number}")
            labels.append(f"{run.name}\n{name.rpartition('_')[0].replace('_', ' ')}")
        if run in goodputs:
            axis.bar(len(labels), goodputs[run], color=f"C{number}", alpha=0.5)
            labels.append(f"{run.name}\ngoodput")
    if not labels:
        axis.text(0.5, 0.5, "no run has ended with a comparison", ha="center", va="bottom",
                  transform=axis.transAxes)  # fmt: skip
    axis.set_xticks(range(len(labels)), labels)
