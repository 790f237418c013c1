"""`meshwright run`: a program's ranks on this machine, or none of them: a dry run."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import print_result, print_run
from .parsers import add_command, given_options

if TYPE_CHECKING:
    from meshwright.runtime.dry.found import DryRun


def add(commands: Any) -> None:
    """Add the command."""
    from meshwright.runtime.training.options import add_arguments

    parser = add_command(
        commands,
        "run",
        _run,
        "Run a program on this machine, one process a rank, and write its log to a run folder.",
    )
    parser.add_argument("program", help="a program's folder")
    add_arguments(parser)
    parser.add_argument("--port", type=int, default=0, help="rendezvous port; 0 takes a free one")
    parser.add_argument(
        "--dry",
        action="store_true",
        help="run one step of every unlike rank on this CPU, without memory, devices or peers: "
        "shapes, whether all messages meet, and bytes held",
    )


def _run(arguments: argparse.Namespace) -> int:
    from meshwright.api.runs import run

    options = given_options(arguments)
    if arguments.dry:
        return _dry(arguments, options)
    result = run(arguments.program, port=arguments.port, **options)
    return print_run(arguments, result)


def _dry(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    from meshwright.api.dry import dry_run
    from meshwright.runtime.launch.readiness import read_needs

    found = dry_run(arguments.program, **options)
    needs = read_needs(Path(arguments.program))
    planned = needs.rank_bytes if needs is not None else None
    data = {"program": arguments.program, "planned_peak_bytes": planned, **asdict(found)}
    print_result(arguments, data, _dry_text(arguments.program, found, planned), "dry")
    return 0


def _dry_text(program: str, found: "DryRun", planned: int | None) -> str:
    axes = " ".join(f"{axis}={size}" for axis, size in found.mesh.items())
    messages = sum(rank.messages for rank in found.ranks)
    lines = [
        f"{program}: {axes}, {found.world:,} ranks; one step of the {len(found.ranks)} that can "
        f"differ, in {found.seconds:.1f} s",
        f"all of their {messages:,} messages meet, and no rank waits for ever",
        "",
        f"{'rank':>6}  {'place':<24}  {'actions':>7}  {'messages':>8}  {'between steps':>13}  "
        f"{'at most':>10}  in",
    ]
    for rank in _fullest(found):
        place = " ".join(f"{axis}={at}" for axis, at in rank.coordinates.items())
        lines.append(
            f"{rank.rank:>6}  {place:<24}  {rank.actions:>7,}  {rank.messages:>8,}  "
            f"{_gib(rank.held_bytes):>13}  {_gib(rank.peak_bytes):>10}  {rank.at}"
        )
    most = max(found.ranks, key=lambda rank: sum(rank.sent_bytes.values()))
    sent = ", ".join(f"{_gib(size)} along {axes}" for axes, size in most.sent_bytes.items() if size)
    lines += ["", f"rank {most.rank} sends most in a step: {sent or 'nothing'}"]
    if planned is not None:
        peak = max(rank.peak_bytes for rank in found.ranks)
        lines.append(
            f"predicted peak of the fullest rank, with what functions use inside: {_gib(planned)}; "
            f"at most {_gib(peak)} outlive a function"
        )
    return "\n".join(lines)


def _fullest(found: "DryRun") -> list[Any]:
    """Return of each place along the pipeline the rank that holds most."""
    best: dict[int, Any] = {}
    for rank in found.ranks:
        before = best.get(rank.pipeline_rank)
        if before is None or rank.peak_bytes > before.peak_bytes:
            best[rank.pipeline_rank] = rank
    return list(best.values())


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.2f} MiB"
