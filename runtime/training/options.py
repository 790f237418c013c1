"""What a run is given besides its program: command-line options, and keys of a job file's [run]."""

import argparse
import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..metrics.trackers import TRACKERS
from ..optimizers.options import (
    MUON_SCALES,
    NAMES,
    ROUNDINGS,
    ROUTER_BIAS_RATE,
    GroupError,
    group_text,
    parse_group,
)
from ..own_code import is_named
from .loss_guard import POLICIES
from .lr_schedule import SCHEDULES
from .past_run import kept_option
from .spans import in_steps, parse_span

# Peak learning rates of AdamW on new weights of small models, and on trained ones.
FROM_START, FROM_WEIGHTS = 1e-3, 2e-5
WARMUP_SHARE, LEAST_WARMUP, MOST_WARMUP = 0.03, 10, 2000
STOPPED = 75  # exit code of a run that a signal ended after saving (EX_TEMPFAIL)
ABORTED = 4  # of a run that its user ended at once
UNFIT = 5  # of a run whose machines are slower than planned


class OptionError(ValueError):
    """An option outside of what it may be."""


def _option(
    default: Any,
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    span: bool = False,
    shown: str = "",
) -> Any:
    """low, high: the least value, and the greatest. below: all values are less. span: tokens, too,
    are taken, as steps. shown: the default in words, where it follows from other options."""
    bounds = {"low": low, "high": high, "below": below}
    kinds = {"help": text, "choices": choices, "span": span, "shown": shown}
    return field(default=default, metadata={**kinds, **bounds})


@dataclass(frozen=True)
class RunOptions:
    """Every field is a command-line option and a key of a job file's [run] table.

    Raises OptionError for a value outside of its bounds, not finite, or not among its choices, and
    for one that says nothing without another.
    """

    data: str = _option(
        "demo",
        "demo, shards:DIR (see data tokenize), pairs:DIR (DIR/source and DIR/target, for an "
        "encoder-decoder), mix:FILE.toml (weighted [[source]] tables), "
        "hf-stream:NAME[:SPLIT] or hf-stream:FILE.toml, file:PATH (bytes), py:module:name (code of "
        "your own), random:VOCAB[:SEED] or fixed:VOCAB[:SEED]",
    )
    eval_data: str = _option("", "held-out data, where it is not the held-out part of --data")
    steps: int = _option(
        100, "optimizer steps of the whole run, or its tokens: 2e9tok, 500Mtok", low=1, span=True
    )
    seed: int = _option(0, "of initial weights and the order of samples", low=0)
    lr: float = _option(
        1e-3,
        "peak learning rate: trained weights are lost at that of new ones",
        low=0.0,
        shown=f"{FROM_START:g}; {FROM_WEIGHTS:g} with --weights",
    )
    schedule: str = _option("cosine", "of the learning rate after warm-up", choices=SCHEDULES)
    warmup: int = _option(
        10,
        "steps or tokens of linear warm-up, until moments are known; kept by a run that goes on",
        low=0,
        span=True,
        shown="0.03 of --steps, at least 10 steps or a tenth, at most 2000",
    )
    floor: float = _option(0.1, "last learning rate as a share of the peak", low=0.0, high=1.0)
    optimizer: str = _option(
        "", "update rule; the one the plan counted on if not given", choices=("", *NAMES)
    )
    beta1: float = _option(
        0.9,
        "decay of the first moment: adamw, lion, schedule-free, muon's vectors",
        low=0.0,
        below=1.0,
    )
    beta2: float = _option(
        0.95,
        "decay of the second moment; of lion's momentum, for which 0.99 is usual",
        low=0.0,
        below=1.0,
    )
    eps: float = _option(1e-8, "epsilon of adamw, schedule-free and muon's vectors", low=0.0)
    momentum: float = _option(0.95, "of sgd and muon", low=0.0, below=1.0)
    nesterov: bool = _option(False, "sgd's momentum looks ahead, as muon's always does")
    muon_scale: str = _option(
        "adamw",
        "size of muon's updates: as large as adamw's, at adamw's rates, or as published",
        choices=MUON_SCALES,
    )
    weight_decay: float = _option(0.1, "of matrices; vectors are not decayed", low=0.0)
    groups: tuple = _option(
        (),
        "rate and decay of parameters whose logical name fits a shell wildcard, as "
        "'MATCH:lr_scale=0.5,weight_decay=0'; the first that fits counts; may be given again",
    )
    router_bias_rate: float = _option(
        ROUTER_BIAS_RATE,
        "how far a step moves the bias of an expert in its router, where the plan updates them: up "
        "if fewer tokens than the mean chose it, else down; 0 holds them",
        low=0.0,
    )
    rounding: str = _option(
        "",
        "of updated weights narrower than float32; as planned if not given",
        choices=("", *ROUNDINGS),
    )
    clip: float = _option(1.0, "global gradient norm to clip to, 0 for none", low=0.0)
    eval_every: int = _option(0, "steps between evaluations, 0 for one at the end", low=0)
    eval_batches: int = _option(
        16,
        "first held-out batches that an evaluation reads, also that at the end: 16 take about as "
        "long as five steps; 0 for all",
        low=0,
    )
    log_every: int = _option(1, "steps between printed lines; metrics.jsonl has every step", low=1)
    track: str = _option("none", "where rows go besides metrics.jsonl", choices=TRACKERS)
    out: str = _option("run", "the run's folder")
    save_every: int = _option(
        0,
        "steps between checkpoints in OUT/checkpoints, and one at the end; 0 for --save-minutes",
        low=0,
    )
    save_minutes: float = _option(
        30.0,
        "minutes between checkpoints without --save-every, and one at the end: what a failure "
        "costs at most; 0 for none",
        low=0.0,
    )
    keep: int = _option(
        3, "newest checkpoints kept, as one may be damaged and disks fill up; 0 for all", low=0
    )
    keep_every: int = _option(0, "checkpoints of multiples of this step are kept for good", low=0)
    fast_dir: str = _option(
        "",
        "a folder on a disk of each host's own, or in its memory, for checkpoints that are written "
        "more often than those of OUT, and read where every rank finds its own; variables such as "
        "$TMPDIR, and ~, are those of each host",
    )
    fast_every: int = _option(
        0, "steps between checkpoints in --fast-dir, the newest 2 kept there", low=0
    )
    resume: str = _option(
        "",
        'a checkpoint\'s folder, or "auto" for the newest good one of OUT, from which a run goes '
        "on anyway where there is one",
    )
    fresh: bool = _option(
        False, "start at step 0 in an OUT that holds a run, which is moved to OUT/earlier-001"
    )
    allow_change: bool = _option(
        False,
        "resume where other options, another batch or other data make a jump in the learning rate "
        "or in the order of samples",
    )
    on_nan: str = _option(
        "stop",
        "a step whose loss is not finite, or spikes: stop, skip its update, or roll back to the "
        "newest checkpoint and pass over the batches since",
        choices=POLICIES,
    )
    spike: float = _option(
        3.0,
        "a loss is a spike if it exceeds this multiple of the median of the last 32 losses, and "
        "that median by at least 1; none is seen before 16 losses are known; weights are seldom "
        "worth keeping after one; at least 1, or 0 for none",
        low=0.0,
    )
    hang_after: float = _option(
        300.0,
        "seconds without progress that end the run, 0 for never; the start, the first step and the "
        "write of a checkpoint have ten times as long",
        low=0.0,
    )
    weights: str = _option("", "a Hugging Face folder of safetensors to start from (hf: models)")
    accept_tokenizer: bool = _option(
        False, "start from --weights that were trained on tokens of another tokenizer than --data's"
    )
    accept_graph: bool = _option(
        False, "go on with a py: model whose code is not that of the checkpoint or the --weights"
    )
    callbacks: tuple = _option(
        (),
        "py:module:name of a class or function of your own that is called as the run goes on; may "
        "be given again",
    )
    anyway: bool = _option(
        False, "run on a machine that lacks what the program was planned for, on what it has"
    )
    preflight: str = _option(
        "",
        "before the first step compare rates of matmuls, copies and links with those of the plan: "
        "say what is slow, stop where anything is, or only compare; a few seconds",
        choices=("", "say", "stop", "only"),
    )
    no_compile: bool = _option(
        False, "run the emitted text eagerly, without torch.compile and CUDA graphs"
    )
    no_graphs: bool = _option(False, "let the host issue each kernel, record no CUDA graph")

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.name, getattr(self, item.name), item.metadata)
        if 0.0 < self.spike < 1.0:
            raise OptionError(f"--spike {self.spike}: give at least 1, or 0 for none")
        if self.warmup > self.steps:
            raise OptionError(
                f"--warmup {self.warmup} is longer than the run, --steps {self.steps}: give "
                f"--warmup {self.steps} or less, or at least --steps {self.warmup}"
            )
        if self.fresh and self.resume:
            raise OptionError(
                f"--fresh starts at step 0, --resume {self.resume} goes on: give one of them"
            )
        self._check_saves()
        for spec in self.callbacks:
            if not is_named(spec):
                raise OptionError(f"--callback {spec}: write py:module:name")
        try:
            for text in self.groups:
                parse_group(text)
        except GroupError as error:
            raise OptionError(str(error)) from None

    @property
    def saves(self) -> bool:
        """Tell whether the run writes checkpoints of its own accord."""
        return self.save_every > 0 or self.save_minutes > 0

    def _check_saves(self) -> None:
        """What is said of checkpoints is of a run that has some."""
        if self.keep_every and not self.saves:
            raise OptionError(
                f"--keep-every {self.keep_every}: by --save-minutes 0 and without --save-every no "
                "checkpoint is written that could be kept; give one of them, or leave it out"
            )
        self._check_fast()
        if self.on_nan == "rollback" and not (self.save_every or self.resume):
            raise OptionError(
                f"--on-nan rollback: with --save-every {self.save_every} and no --resume there is "
                "no checkpoint to roll back to; give --save-every, or --on-nan skip"
            )

    def _check_fast(self) -> None:
        """The fast tier stands beside the durable one, and is faster."""
        every, durable = self.fast_every, self.save_every
        if bool(self.fast_dir) != bool(every):
            given = f"--fast-dir {self.fast_dir!r} and --fast-every {every}"
            raise OptionError(f"{given}: one says nothing without the other; give both, or neither")
        if every and not self.saves:
            raise OptionError(
                f"--fast-every {every}: with --save-every {durable} and --save-minutes "
                f"{self.save_minutes:g} no checkpoint outlives its host; give one of them"
            )
        if every and 0 < durable <= every:
            raise OptionError(
                f"--fast-every {every} is no more often than --save-every {durable}: give "
                f"less than {durable}, or leave --fast-dir out"
                if durable > 1
                else f"--fast-every {every}: --save-every 1 saves every step; leave --fast-dir out"
            )


# Fields that take a length in tokens, too.
SPANS = tuple(item.name for item in fields(RunOptions) if item.metadata["span"])


# Fields that hold several, by the word for one.
_ONE_OF = {"groups": "group", "callbacks": "callback"}
_METAVARS = {"groups": "RULE", "callbacks": "NAME"}


def flag(name: str) -> str:
    """The command-line spelling of a field; one that may be given again is called by one of it."""
    return f"--{_ONE_OF.get(name, name).replace('_', '-')}"


def _check(name: str, value: Any, metadata: Any) -> None:
    choices = metadata["choices"]
    low, high, below = (metadata[key] for key in ("low", "high", "below"))
    if choices and value not in choices:
        near = difflib.get_close_matches(str(value), choices, 1)
        hint = f"did you mean {near[0]}; " if near else ""
        known = ", ".join(filter(None, choices))
        raise OptionError(f"{flag(name)} {value}: {hint}give one of {known}")
    if isinstance(value, float) and not math.isfinite(value):
        raise OptionError(f"{flag(name)} {value}: give a finite number")
    if low is not None and value < low:
        raise OptionError(f"{flag(name)} {value}: give at least {low}")
    if high is not None and value > high:
        raise OptionError(f"{flag(name)} {value}: give at most {high}")
    if below is not None and value >= below:
        raise OptionError(f"{flag(name)} {value}: give less than {below}")


def add_arguments(parser: argparse.ArgumentParser, without: Iterable[str] = ()) -> None:
    """One option per field of RunOptions, those of the fields in `without` left out."""
    for item in [f for f in fields(RunOptions) if f.name not in without]:
        name, text = flag(item.name), item.metadata["help"]
        if isinstance(item.default, bool):
            parser.add_argument(name, action="store_true", help=text)
            continue
        if isinstance(item.default, tuple):
            parser.add_argument(
                name, dest=item.name, action="append", metavar=_METAVARS[item.name], help=text
            )
            continue
        choices = item.metadata["choices"] or None
        kind = parse_span if item.metadata["span"] else type(item.default)
        metavar = None if choices else type(item.default).__name__.upper()
        parser.add_argument(name, type=kind, choices=choices, help=_help(item), metavar=metavar)


def _help(item: Field[Any]) -> str:
    """Return the help of an option, with its default if it has one."""
    text, default = item.metadata["help"], item.metadata["shown"] or item.default
    return f"{text} (default: {default})" if default != "" else text


def option_names() -> list[str]:
    """Return the names of all options."""
    return [item.name for item in fields(RunOptions)]


def check_names(given: Iterable[str]) -> None:
    """Raise OptionError for a name that no option has."""
    known = option_names()
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}" if near else ""
            raise OptionError(f"unknown option {name!r}{hint}; options: {', '.join(known)}")


def run_options(
    values: dict[str, Any], tokens_per_step: Callable[[], int] | None = None
) -> RunOptions:
    """Return RunOptions of parsed arguments or a job's table, other names left out.

    tokens_per_step: of the program, asked for where a length is given in tokens.
    """
    known = {f.name for f in fields(RunOptions)}
    given = {k: v for k, v in values.items() if k in known and v is not None}
    for name in SPANS:
        if name in given and tokens_per_step is not None:
            given[name] = in_steps(flag(name), given[name], tokens_per_step)
    given.setdefault("lr", FROM_WEIGHTS if given.get("weights") else FROM_START)
    given.setdefault("warmup", _warmup(given))
    given |= {"groups": group_texts(given.get("groups", ()))}
    return RunOptions(**given | {"callbacks": tuple(map(str, given.get("callbacks", ())))})


def _warmup(given: dict[str, Any]) -> int:
    """Return the steps of warm-up of a run that is not told them: those of the run that goes on in
    its folder, else a share of its steps."""
    steps = given.get("steps", RunOptions.steps)
    known = None if given.get("fresh") else kept_option(Path(given.get("out", "run")), "warmup")
    least = min(LEAST_WARMUP, math.ceil(steps / 10))
    share = min(max(math.ceil(WARMUP_SHARE * steps), least), MOST_WARMUP)
    return min(share if known is None else known, steps)


def group_texts(given: Iterable[object]) -> tuple[str, ...]:
    """Groups as `--group` has them, from texts or a job file's tables; raises OptionError."""
    try:
        return tuple(map(group_text, given))
    except GroupError as error:
        raise OptionError(str(error)) from None
