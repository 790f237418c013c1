"""`meshwright what-if`: one model on many clusters and at many sizes, as a table."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.demands import Job
from meshwright.api.files import write_text
from meshwright.ir.dtypes import PLANNED
from meshwright.runtime.given import check_file_place, check_picture

from .doing import Doing
from .output import print_result
from .parsers import Once, add_command, add_effort, add_processes
from .what_if_table import FIGURES, OBJECTIVES, Table, unknown_figure

if TYPE_CHECKING:
    from meshwright.planner.what_if.answers import Answer


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "what-if",
        _run,
        "Ask what a model would take on clusters that you need not own. Searches every --cluster "
        "at every combination of the --sweep values for its best plan; with --plan, prices that "
        "plan as it stands. Prints a table; the best row has a star.",
    )
    parser.add_argument("model", nargs="?", help="as plan takes it; leave it out with --plan")
    parser.add_argument("--plan", type=Path, metavar="PLAN", help="a plan to price, not to search")
    parser.add_argument(
        "--cluster",
        action="append",
        default=[],
        metavar="C",
        help="as plan takes it; repeatable. all: a node of each part of the catalogue; all:8: so "
        "many cards of each",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=V,V",
        help="values to try, repeatable: nodes, devices_per_node, seq, global_batch, "
        "device.memory_gb (GiB), device.matmul, device.bandwidth (GB/s), device.launch_us, "
        "device.call_us, link.NAME.bandwidth (GB/s), link.NAME.latency (us), host.memory_gb, "
        "host.bandwidth; xF is a factor",
    )
    parser.add_argument("--seq", type=int, metavar="N", help="tokens of a row")
    parser.add_argument("--global-batch", type=int, metavar="N", help="rows of an optimizer step")
    parser.add_argument("--dtype", choices=PLANNED, default="", help="as of plan")
    parser.add_argument(
        "--pin", action="append", default=[], metavar="KEY=VALUE", help="fix a decision, as of plan"
    )
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="search each point under these pins as well, and show how much slower that is",
    )
    parser.add_argument(
        "--software",
        action=Once,
        default="",
        metavar="NAME",
        help="price the layout of each row as another stack runs it, too: pytorch-eager, "
        "megatron-2025 or another built-in name, which a wrong one lists, or a .toml file",
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="time",
        help="what the best row has least of for a token; memory: of a device; hardware: fewest "
        "devices, then least price, then fastest; --cluster all has 1, 2, 4 and so on of each part "
        "then, and what needs more devices than the fewest is left out (default: time)",
    )
    parser.add_argument(
        "--tokens",
        type=float,
        metavar="N",
        help="add the days, price and energy of training on N tokens, such as 1e12",
    )
    parser.add_argument(
        "--prices", type=Path, metavar="FILE", help="prices and watts beside the built-in ones"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw tokens/s (png, svg, pdf)")
    parser.add_argument(
        "--trust-capture", action="store_true", help="do not prove the capture, as of plan"
    )
    add_effort(parser, "fast")
    add_processes(parser)


def _run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    _check_figures(arguments)
    table = Table(
        arguments.model or str(arguments.plan),
        f"searched, --effort {arguments.effort}" if arguments.model else "priced as it stands",
        arguments.objective,
        tokens=arguments.tokens,
        compared=tuple(arguments.compare),
        searched=arguments.plan is None,
        software=arguments.software,
        prices=arguments.prices is not None,
        repeated=tuple(spec for spec, count in Counter(arguments.cluster).items() if count > 1),
    )
    with _stopped_with(table):
        _fill(table, arguments)
    table.check_planned()
    table.check_objective()
    if arguments.csv:
        write_text(arguments.csv, table.csv)
    if arguments.plot:
        _draw(table.answers, arguments.plot)
    print_result(arguments, table.facts, table.text)


@contextmanager
def _stopped_with(table: Table) -> Iterator[None]:
    """Let Ctrl-C end the search with the points found so far, where there are any."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if type(interrupt) is not KeyboardInterrupt or not table.answers:
            raise
        table.stopped = True
        print(f"stopped with Ctrl-C; points finished: {len(table.answers)}", file=sys.stderr)


def _fill(table: Table, arguments: argparse.Namespace) -> None:
    """Find the answers; with --compare those under its pins as well."""
    from meshwright.api.plans import Plan
    from meshwright.api.what_if import priced, what_if

    words: dict[str, Any] = {
        "clusters": arguments.cluster,
        "sweeps": arguments.sweep,
        "prices": arguments.prices,
    }
    if arguments.plan:
        plan = Plan.load(arguments.plan)
        table.answers += priced(plan, software=arguments.software, **words)
        return
    with Doing() as say:
        least = arguments.objective == "hardware"
        words["processes"] = arguments.processes
        search = partial(what_if, arguments.model, say=say, least=least, **words)
        own = _job(arguments, arguments.pin)
        search(job=own, told=table.answers.append, software=arguments.software)
        if arguments.compare:
            pins = [*arguments.pin, *arguments.compare]
            search(job=_job(arguments, pins), told=table.others.append)


def _job(arguments: argparse.Namespace, pins: list[str]) -> Job:
    """Return the demands; a size that is swept is 1 here."""
    return Job(
        seq=arguments.seq or 1,
        global_batch=arguments.global_batch or 1,
        dtype=arguments.dtype,
        pins=tuple(pins),
        effort=arguments.effort,
        trust_capture=arguments.trust_capture,
    )


def _check_figures(arguments: argparse.Namespace) -> None:
    """Refuse an objective whose figure no part has, before anything is searched."""
    if arguments.objective not in FIGURES:
        return
    from meshwright.api.what_if import specs_of
    from meshwright.planner.hardware.cluster_file import parse_cluster
    from meshwright.planner.what_if.prices import read_prices

    prices = read_prices(arguments.prices)
    parts = sorted({parse_cluster(spec).device.name for spec in specs_of(arguments.cluster)})
    figures = [getattr(prices.of(part), FIGURES[arguments.objective]) for part in parts]
    if all(figure is None for figure in figures):
        raise unknown_figure(arguments.objective, parts)


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.model is None) == (arguments.plan is None):
        given = [name for name in (arguments.model, arguments.plan) if name]
        raise ValueError(f"give MODEL to search or --plan PLAN to price; {len(given)} are given")
    if not arguments.cluster:
        raise ValueError("give at least one --cluster, such as h200:8 or h100:8x16")
    if arguments.plan and (arguments.pin or arguments.compare):
        pins = ", ".join([*arguments.pin, *arguments.compare])
        raise ValueError(f"--plan prices a plan as it stands; drop the pins {pins}")
    given = [name for name in ("seq", "global_batch", "dtype") if getattr(arguments, name)]
    if arguments.plan and given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"--plan prices a plan as it stands; drop {options}")
    if arguments.tokens is not None and not 0 < arguments.tokens < float("inf"):
        raise ValueError(f"--tokens {arguments.tokens:g}: give a number above 0, such as 1e12")
    if arguments.csv:
        check_file_place("--csv", arguments.csv)
    if arguments.plot:
        check_picture("--plot", arguments.plot)
    if not arguments.plan:
        _check_sizes(arguments)


def _check_sizes(arguments: argparse.Namespace) -> None:
    swept = {text.partition("=")[0] for text in arguments.sweep}
    for name in ("seq", "global_batch"):
        given, option = getattr(arguments, name), name.replace("_", "-")
        if given is None and name not in swept:
            raise ValueError(f"give --{option} N, or --sweep {name}=N,N")
        if given is not None and given < 1:
            raise ValueError(f"--{option} {given}: at least 1")


def _draw(answers: "list[Answer]", out: Path) -> None:
    from meshwright.planner.what_if.curves import curves_of
    from meshwright.runtime.metrics.plot import draw_lines

    label, lines = curves_of(answers)
    if not lines:
        raise ValueError(f"--plot {out}: none of {len(answers)} points has a plan to draw")
    draw_lines(lines, label, "tokens a second", out)
