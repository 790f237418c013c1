"""`meshwright what-if`: one model on many clusters and at many sizes, as a table."""

import argparse
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.demands import Job
from meshwright.api.files import write_text
from meshwright.runtime.given import check_file_place

from .doing import Doing
from .output import print_result
from .parsers import add_command, add_effort

if TYPE_CHECKING:
    from meshwright.planner.what_if.answers import Answer

OBJECTIVES = ("time", "cost", "energy", "memory")
_GIB = 2.0**30


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
        "--cluster", action="append", default=[], metavar="C", help="as plan takes it; repeatable"
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=V,V",
        help="values to try, repeatable: nodes, devices_per_node, seq, global_batch, "
        "device.memory_gb (GiB), device.matmul, device.bandwidth (GB/s), device.launch_us, "
        "link.NAME.bandwidth (GB/s), link.NAME.latency (us), host.memory_gb, host.bandwidth; xF "
        "is a factor",
    )
    parser.add_argument("--seq", type=int, metavar="N", help="tokens of a row")
    parser.add_argument("--global-batch", type=int, metavar="N", help="rows of an optimizer step")
    parser.add_argument("--dtype", choices=("f32", "bf16", "f64"), default="", help="as of plan")
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
        "--objective",
        choices=OBJECTIVES,
        default="time",
        help="what the best row has least of for a token; memory: of a device (default: time)",
    )
    parser.add_argument(
        "--tokens", type=float, metavar="N", help="say days, price and energy of so many: 1e12"
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


def _run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    with Doing() as say:
        answers, others = _asked(arguments, say)
    if arguments.csv:
        write_text(arguments.csv, _csv(answers, others, arguments.tokens))
    if arguments.plot:
        _draw(answers, arguments.plot)
    best = _best(answers, arguments.objective)
    facts = {
        "speed": "priced" if arguments.plan else f"searched, --effort {arguments.effort}",
        "objective": arguments.objective,
        "points": [
            {**row, "best": answer is best}
            for answer, row in zip(answers, _rows(answers, others, arguments.tokens), strict=True)
        ],
    }
    print_result(arguments, facts, _text(arguments, answers, others, best))


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.model is None) == (arguments.plan is None):
        given = [name for name in (arguments.model, arguments.plan) if name]
        raise ValueError(f"give MODEL to search or --plan PLAN to price; {len(given)} are given")
    if not arguments.cluster:
        raise ValueError("give at least one --cluster, such as h200:8 or h100:8x16")
    if arguments.plan and (arguments.pin or arguments.compare):
        pins = ", ".join([*arguments.pin, *arguments.compare])
        raise ValueError(f"--plan prices a plan as it stands; drop the pins {pins}")
    if arguments.tokens is not None and not 0 < arguments.tokens < float("inf"):
        raise ValueError(f"--tokens {arguments.tokens:g}: give a number above 0, such as 1e12")
    for option in ("csv", "plot"):
        if path := getattr(arguments, option):
            check_file_place(f"--{option}", path)
    if not arguments.plan:
        _check_sizes(arguments)


def _check_sizes(arguments: argparse.Namespace) -> None:
    swept = {text.partition("=")[0] for text in arguments.sweep}
    for name in ("seq", "global_batch"):
        if getattr(arguments, name) is None and name not in swept:
            option = name.replace("_", "-")
            raise ValueError(f"give --{option} N, or --sweep {name}=N,N")


def _draw(answers: "list[Answer]", out: Path) -> None:
    from meshwright.planner.what_if.curves import curves_of
    from meshwright.runtime.metrics.plot import draw_lines

    label, lines = curves_of(answers)
    if not lines:
        raise ValueError(f"--plot {out}: none of {len(answers)} points has a plan to draw")
    draw_lines(lines, label, "tokens a second", out)


def _asked(arguments: argparse.Namespace, say: Doing) -> "tuple[list[Answer], list[Answer] | None]":
    from meshwright.api.plans import Plan
    from meshwright.api.what_if import priced, what_if

    words: dict[str, Any] = {
        "clusters": arguments.cluster,
        "sweeps": arguments.sweep,
        "prices": arguments.prices,
    }
    if arguments.plan:
        return priced(Plan.load(arguments.plan), **words), None

    def search(pins: Sequence[str]) -> "list[Answer]":
        job = Job(
            seq=arguments.seq or 1,
            global_batch=arguments.global_batch or 1,
            dtype=arguments.dtype,
            pins=tuple(pins),
            effort=arguments.effort,
            trust_capture=arguments.trust_capture,
        )
        return what_if(arguments.model, job=job, say=say, **words)

    answers = search(arguments.pin)
    return answers, search([*arguments.pin, *arguments.compare]) if arguments.compare else None


def _best(answers: "list[Answer]", objective: str) -> "Answer | None":
    """Return the answer with the least of the objective.

    Raises ValueError where the price or the watts of every part are unknown.
    """
    best = min(answers, key=lambda answer: answer.rank(objective))
    if best.rank(objective) < float("inf"):
        return best
    if found := sorted({a.point.cluster.device.name for a in answers if a.step}):
        figure = "price_per_hour" if objective == "cost" else "watts"
        raise ValueError(
            f"--objective {objective}: {figure} of {', '.join(found)} is not known; give it in "
            "--prices FILE"
        )
    return None


def _rows(
    answers: "list[Answer]", others: "list[Answer] | None", tokens: float | None
) -> list[dict[str, Any]]:
    """Return what --json and --csv say of each point."""
    return [
        _row(answer, others[number] if others else None, tokens)
        for number, answer in enumerate(answers)
    ]


def _row(answer: "Answer", other: "Answer | None", tokens: float | None) -> dict[str, Any]:
    step, point = answer.step, answer.point
    budget = answer.budget(tokens) if tokens else None
    return {
        "cluster": point.cluster.name,
        "devices": answer.devices,
        "seq_tokens": point.seq,
        "global_batch_rows": point.global_batch,
        "swept": dict(point.swept),
        "plan": step and step.plan,
        "why_not": answer.why or None,
        "step_time_s": step and step.step_us / 1e6,
        "gap": step and step.gap,
        "tokens_per_s": step and step.tokens_per_s,
        "mfu": step and step.mfu,
        "peak_bytes": step and step.peak_bytes,
        "usable_bytes": step and step.usable_bytes,
        "limit": step and step.limit,
        "shares": step and dict(step.shares),
        "days": budget and budget.days,
        "dollars": budget and budget.dollars,
        "energy_kwh": budget and budget.kwh,
        "compared_step_time_s": other and other.step and other.step.step_us / 1e6,
    }


def _csv(answers: "list[Answer]", others: "list[Answer] | None", tokens: float | None) -> str:
    rows = _rows(answers, others, tokens)
    swept = list(rows[0].pop("swept"))
    flat = [
        {**row.get("swept", dict(answer.point.swept)), **row}
        for answer, row in zip(answers, rows, strict=True)
    ]
    names = [*swept, *(name for name in rows[0] if name not in ("swept", "shares"))]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _text(
    arguments: argparse.Namespace,
    answers: "list[Answer]",
    others: "list[Answer] | None",
    best: "Answer | None",
) -> str:
    head = _head(arguments)
    rows = [head]
    for number, answer in enumerate(answers):
        other = others[number] if others else None
        star = "*" if answer is best else ""
        rows.append([star, str(number + 1), *_columns(arguments, answer, other, len(head) - 2)])
    widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
    lines = ["  ".join(map(_padded, row, widths, head)).rstrip() for row in rows]
    speed = f"searched, --effort {arguments.effort}" if arguments.model else "priced as it stands"
    plans = [
        f"   {number:>{widths[1]}}  {answer.step.plan if answer.step else answer.why}"
        for number, answer in enumerate(answers, start=1)
    ]
    return "\n".join([f"{arguments.model or arguments.plan}: {speed}", *lines, "plans", *plans])


def _head(arguments: argparse.Namespace) -> list[str]:
    head = ["", "", "cluster", "seq", "rows", "ms a step", "tokens/s", "mfu", "peak / GiB"]
    head += ["gap"] * (arguments.plan is None) + ["compared"] * bool(arguments.compare)
    return head + ["days", "dollars", "MWh"] * (arguments.tokens is not None) + ["limited by"]


def _padded(text: str, width: int, head: str) -> str:
    return text.ljust(width) if head in ("cluster", "limited by") else text.rjust(width)


def _columns(
    arguments: argparse.Namespace, answer: "Answer", other: "Answer | None", count: int
) -> list[str]:
    step, point = answer.step, answer.point
    sizes = [point.cluster.name, f"{point.seq:,}", f"{point.global_batch:,}"]
    if step is None:
        return [*sizes, *["-"] * (count - len(sizes))]
    memory = f"{_short(step.peak_bytes / _GIB)} / {_short(step.usable_bytes / _GIB)}"
    cells = [*sizes, f"{step.step_us / 1e3:,.1f}", f"{step.tokens_per_s:,.0f}"]
    cells += ["-" if step.mfu is None else f"{step.mfu:.1%}", memory]
    if arguments.plan is None:
        cells.append(f"{step.gap:.1%}")
    if arguments.compare:
        cells.append(_compared(answer, other))
    if arguments.tokens:
        cells += _budget(answer, arguments.tokens)
    kind, share = step.shares[0]
    return [*cells, f"{kind} {share:.0%}"]


def _compared(answer: "Answer", other: "Answer | None") -> str:
    """Return how much slower the other pins are; "-" where nothing fits under them."""
    if answer.step is None or other is None or other.step is None:
        return "-"
    return f"{other.step.step_us / answer.step.step_us - 1:+.1%}"


def _budget(answer: "Answer", tokens: float) -> list[str]:
    """Return days, dollars and MWh."""
    found = answer.budget(tokens)
    assert found is not None, answer.why
    return [*map(_short, (found.days, found.dollars, found.kwh and found.kwh / 1e3))]


def _short(value: float | None) -> str:
    """Return a number with three digits at least, "-" where it is not known."""
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 10 else f"{value:,.{1 if value < 1000 else 0}f}"
