"""`meshwright plot`: runs in one picture."""

import argparse
from pathlib import Path
from typing import Any

from meshwright.runtime.given import check_file_place

from .output import print_result
from .parsers import add_command


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "plot",
        _run,
        "Draw runs: loss, learning rate, gradient norm, throughput, memory, predicted against "
        "measured, in one picture.",
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


def _run(arguments: argparse.Namespace) -> None:
    out = Path(arguments.output)
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"-o {out}: give a name that ends with .png, .svg or .pdf")
    check_file_place("-o", out)
    from meshwright.runtime.metrics.plot import plot_runs

    plot_runs([Path(run) for run in arguments.runs], out, arguments.x, arguments.smooth)
    print_result(arguments, {"picture": str(out)}, f"drawn in {out}")
