"""`meshwright plan`: a model and a cluster to a plan's file."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.ir.dtypes import PLANNED

from .output import print_result
from .parsers import add_command, add_effort, add_processes
from .planning import plan_of

if TYPE_CHECKING:
    from meshwright.api.plans import Plan

# Where a plan goes that is told no file.
DEFAULT = "plan.txt"


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "plan",
        _run,
        "Plan a model for a cluster. Traces the model without weights or a GPU, decides mesh, "
        "placements, storage, recomputation and schedule, and writes the plan as text.",
    )
    parser.add_argument(
        "model",
        help="a preset (llama-7b), a TOML file, hf:DIR, hf-images:DIR, or py:module:factory",
    )
    parser.instead = _as_pin
    _add_options(parser)
    parser.add_argument(
        "-o",
        "--output",
        help=f"the plan's file, written over if it is there (default: {DEFAULT}, if it is not)",
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster",
        default="auto",
        metavar="C",
        help="a catalogue name with a count (h200:8, h100:8x16, cpu:2), a TOML file, or auto: this "
        "machine as it was probed, else its GPUs, else cpu:4 (default: %(default)s)",
    )
    parser.add_argument(
        "--gpu-memory",
        default="",
        metavar="SIZE",
        help="memory of each device where it is not the part's own, such as 24GiB",
    )
    parser.add_argument(
        "--host-memory",
        default="",
        metavar="SIZE",
        help="memory of a host that offloaded values may use, such as 64GiB",
    )
    parser.add_argument("--seq", type=int, required=True, metavar="N", help="tokens of a row")
    parser.add_argument(
        "--global-batch", type=int, required=True, metavar="N", help="rows of an optimizer step"
    )
    parser.add_argument(
        "--dtype",
        choices=PLANNED,
        help="of parameters and compute (default: bf16 on GPUs, f32 on CPU ranks)",
    )
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="fix a decision, the search takes the rest: pp, rep, dp, cp, tp, micro_batch, "
        "zero (0-3), recompute (cheap, all, none, or value names), schedule (1f1b, gpipe, "
        "interleaved, zb-h1, zbv), chunks (stages a rank, interleaved), cuts, price, "
        "shard_weights, shard_sequence (0, 1), precision (master, pure), rounding (stochastic, "
        "nearest; of pure bf16), reduce_dtype (bf16, f32), optimizer, "
        "offload (on, off), outer (pp, dp), cp_order (contiguous, mirrored)",
    )
    parser.add_argument(
        "--freeze",
        default="",
        metavar="RULE",
        help="parameters that are not trained, beside those that the module freezes: names, or "
        "shell wildcards, with commas between them, e.g. 'embed.*,layers.[0-9].*'",
    )
    parser.add_argument(
        "--update-router-bias",
        action="store_true",
        help="train the biases by which routers choose experts, as DeepSeek-V3's: a step moves "
        "each up where fewer tokens than the mean chose its expert, else down",
    )
    parser.add_argument(
        "--loss",
        default="",
        metavar="NAME",
        help="py:module:name of your own function of logits [B, S, V] and labels [B, S], which "
        "gives the mean or the sum over the labels that are not -100 (default: the cross-entropy)",
    )
    parser.add_argument(
        "--prove-full",
        action="store_true",
        help="prove the capture on the whole module whatever its size, not on a small twin",
    )
    parser.add_argument(
        "--trust-capture",
        action="store_true",
        help="do not run the captured program against the module before planning",
    )
    add_effort(parser, "normal")
    add_processes(parser)
    parser.add_argument(
        "--no-search",
        dest="search",
        action="store_false",
        help="take defaults for what is not pinned: pure data parallel, recompute cheap, ZeRO 0",
    )


def _as_pin(option: str) -> str:
    from meshwright.planner.search.pins import Pins

    key = option.removeprefix("--").replace("-", "_")
    return f"--pin {key}=VALUE" if key in {item.name for item in fields(Pins)} else ""


def _free_default() -> str:
    if Path(DEFAULT).exists():
        raise ValueError(
            f"{DEFAULT} is there already: -o {DEFAULT} writes over it, or give another file"
        )
    return DEFAULT


def _run(arguments: argparse.Namespace) -> None:
    from meshwright.runtime.given import check_file_place

    output = arguments.output or _free_default()
    check_file_place("-o", Path(output))
    plan = plan_of(arguments.model, arguments, stoppable=True)
    plan.save(output)
    why = f"; why: {output}.report.txt" if plan.report else ""
    why += f", and {output}.html in a browser" if Path(f"{output}.html").is_file() else ""
    said = plan.report or plan.summary
    print_result(arguments, _facts(plan, output), f"{said}\nplan written to {output}{why}")


def _facts(plan: "Plan", output: str) -> dict[str, Any]:
    """Return what --json prints."""
    from meshwright.planner.report.data import decision
    from meshwright.planner.report.search_data import search_facts

    searched = search_facts(plan.found) if plan.found else None
    return {"plan": output, **decision(plan.decisions), "search": searched}
