"""What a run says before its first step: a block of lines that answers what runs where."""

import math
from collections.abc import Sequence
from pathlib import Path

from ..data import held_out_name
from ..engine import mesh
from ..engine.layout import Layout
from ..metrics.devices import device_text
from ..metrics.pace import clock
from .changes import columns
from .feed import Feed
from .fidelity_file import predicted
from .options import RunOptions


def opening(
    program: Path,
    layout: Layout,
    options: RunOptions,
    feed: Feed,
    hosts: Sequence[str],
    first: int,
    compiling: int,
) -> str:
    """Return the block, a line a subject, for a run that begins before the step `first`.

    compiling: functions that the first step compiles, 0 where none is.
    """
    step_us = predicted(program).get("predicted_step_us")
    rows = [
        ("model", _model(layout)),
        ("device", _devices(layout, hosts)),
        ("plan", _plan(layout)),
        ("step", _step(layout, feed, step_us)),
        ("run", length(options, feed, first, step_us, compiling)),
        ("rate", _rate(options, layout)),
        ("data", f"{options.data}, held out: {held_out_name(options.data, options.eval_data)}"),
        ("saves", _saves(options)),
        ("out", f"{options.out}: metrics.jsonl, log.txt, run.json"),
    ]
    return "\n".join(columns(rows))


def _model(layout: Layout) -> str:
    count = sum(math.prod(param.shape) for param in layout.params)
    frozen = sum(math.prod(layout.param(name).shape) for name in layout.frozen)
    return f"{layout.model}, {count:,} parameters" + (f", {frozen:,} frozen" if frozen else "")


def _devices(layout: Layout, hosts: Sequence[str]) -> str:
    count = math.prod(layout.mesh.values())
    return f"{count} x {device_text(mesh.device())} on {', '.join(hosts)}"


def _plan(layout: Layout) -> str:
    axes = " ".join(f"{name}={size}" for name, size in layout.mesh.items() if size > 1)
    masters = " with float32 masters" if layout.master and layout.dtype == "bfloat16" else ""
    return f"{axes or 'one rank'}, ZeRO {layout.zero}, {layout.dtype}{masters}"


def _step(layout: Layout, feed: Feed, step_us: float | None) -> str:
    parts = f"{layout.num_microbatches} x {layout.micro_batch} rows a data rank"
    text = f"{feed.global_batch:,} rows of {layout.seq:,} = {feed.tokens:,} tokens, as {parts}"
    return text if step_us is None else f"{text}; predicted {step_us / 1e6:,.4g} s"


def length(
    options: RunOptions, feed: Feed, first: int, step_us: float | None, compiling: int
) -> str:
    """Return the steps and tokens left, and how long they are predicted to take."""
    left = options.steps - first
    begun = f"{left:,} of {options.steps:,} steps" if first else f"{left:,} steps"
    text = f"{begun}, {left * feed.tokens:,} tokens"
    if step_us is None:
        return text
    text += f"; predicted {clock(left * step_us / 1e6)} to the end"
    functions = "1 function" if compiling == 1 else f"{compiling} functions"
    return f"{text}, plus the time to compile {functions}" if compiling else text


def _rate(options: RunOptions, layout: Layout) -> str:
    share = f"{options.warmup / options.steps:.0%}"
    if options.warmup == options.steps:
        share += " of the run: the rate never reaches its schedule"
    warmup = f"warm-up {options.warmup} steps ({share})"
    schedule = f"{options.schedule}, peak {options.lr:.3g}, {warmup}"
    return f"{options.optimizer or layout.optimizer}, {schedule}"


def _saves(options: RunOptions) -> str:
    if not options.saves:
        return "no checkpoints"
    every = options.save_every or options.save_minutes
    unit = "steps" if options.save_every else "minutes"
    kept = f"the newest {options.keep} kept" if options.keep else "all kept"
    text = f"a checkpoint every {every:g} {unit} and at the end, {kept}"
    if options.fast_every:
        text += f"; every {options.fast_every} steps one in {options.fast_dir} of each host"
    return text
