"""`meshwright plot`: runs in one picture."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshwright.runtime.given import check_picture

from .output import print_result
from .parsers import add_command


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "plot",
        _run,
        "Draw runs: loss, learning rate, gradient norm, throughput, memory, predicted against "
        "measured, and goodput, in one picture.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder")
    parser.add_argument(
        "--x",
        choices=("steps", "tokens", "time"),
        default="steps",
        help="along the axis; time is of all starts together (default: %(default)s)",
    )
    parser.add_argument(
        "--smooth",
        type=int,
        default=1,
        metavar="N",
        help="draw loss and gradient norm as the mean of N steps, what was logged faintly behind",
    )
    parser.add_argument("-o", "--output", default="runs.png", help="a .png, .svg or .pdf file")


def _goodputs(runs: Sequence[Path]) -> Iterator[tuple[Path, float]]:
    """Yield the goodput of the runs that describe themselves."""
    from meshwright.runtime.training.goodput import goodput
    from meshwright.runtime.training.past_run import RunError, read_run

    for run in runs:
        with suppress(RunError):
            if found := goodput(read_run(run)):
                yield run, found.share


def _run(arguments: argparse.Namespace) -> None:
    out = Path(arguments.output)
    check_picture("-o", out)
    from meshwright.runtime.metrics.plot import plot_runs

    runs = [Path(run) for run in arguments.runs]
    plot_runs(runs, out, arguments.x, arguments.smooth, dict(_goodputs(runs)))
    print_result(arguments, {"picture": str(out)}, f"drawn in {out}")
