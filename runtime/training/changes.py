"""What a resume changes in a run, and what of it makes a jump at the step that comes next."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from ..optimizers.options import parse_group
from .options import RunOptions, flag
from .rule_options import rate_of

# Options that say where files lie, what is shown and kept, and what a resume may do: none of them
# changes a step. Data is compared by its tokens.
_AROUND = frozenset(
    "data eval_data eval_every eval_batches log_every track out save_every save_minutes keep "
    "keep_every fast_dir fast_every preflight resume fresh anyway allow_change weights "
    "accept_tokenizer accept_graph hang_after no_compile no_graphs callbacks".split()
)
_OF_RATE = ("steps", "lr", "schedule", "warmup", "floor")


class Course(NamedTuple):
    """The facts that decide how a run goes on. options: None where a checkpoint holds none.

    samples: rows of `seq` tokens seen in `batches` global batches. data: its name; identity: its
    tokens' hash. loss: of the user's own, "" for the cross-entropy. mixed: whether its steps had
    batches of several sizes, of which the numbers are then those of the last.
    """

    options: RunOptions | None
    samples: int
    batches: int
    seq: int
    seed: int
    data: str
    identity: str
    loss: str = ""
    mixed: bool = False

    @property
    def batch(self) -> str:
        """Rows of a global batch, as text."""
        return f"{self.samples / self.batches:g}" if self.batches else "unknown"


class Change(NamedTuple):
    """An option, or what stands for one, with both values."""

    option: str
    then: Any
    now: Any


def changes(then: Course, now: Course) -> list[Change]:
    """Return what differs between a checkpoint's run and the one that goes on from it."""
    names = [name for name in of_steps() if name != "seed"]
    found = list(_of_options(then.options, now.options, names))
    pairs = [
        Change("--seed", then.seed, now.seed),
        Change("global batch", then.batch, now.batch),
        Change("sequence length", then.seq, now.seq),
        Change("plan's --loss", *map(_loss_name, (then.loss, now.loss))),
    ]
    found += [change for change in pairs if change.then != change.now]
    if then.identity != now.identity:
        found.append(Change("--data", then.data, now.data))
    return found


def of_steps() -> list[str]:
    """Return the names of the options that decide what steps compute, data aside."""
    return [item.name for item in fields(RunOptions) if item.name not in _AROUND]


def table(found: list[Change]) -> str:
    """Return the changes as text, one a line below a heading."""
    rows = [("option", "then", "now"), *((c.option, str(c.then), str(c.now)) for c in found)]
    return "\n".join(["this resume changes:", *(f"  {line}" for line in columns(rows))])


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows of equal length as lines, each column as wide as its widest text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pairs = (zip(row, widths, strict=True) for row in rows)
    return ["  ".join(f"{text:<{width}}" for text, width in pair).rstrip() for pair in pairs]


def jumps(step: int, then: Course, now: Course) -> list[str]:
    """Return what would jump at `step`, the next: each with the number then and now."""
    found = []
    if then.options is not None and now.options is not None:
        found += [
            _rate_jump(step, then.options, now.options),
            _group_jump(then.options, now.options),
        ]
    if (then.samples, then.seq) != (now.samples, now.seq):
        found.append(_batch_jump(then, now))
    if then.seed != now.seed:
        found.append(f"its samples come in the order of seed {then.seed}, this run has {now.seed}")
    if then.identity != now.identity:
        found.append(
            f"it was made with data {then.data} ({then.identity[:12]}), this run has {now.data} "
            f"({now.identity[:12]})"
        )
    if then.loss != now.loss:
        names = map(_loss_name, (then.loss, now.loss))
        found.append(f"it was trained with the loss {next(names)}, this program has {next(names)}")
    return [jump for jump in found if jump]


def _batch_jump(then: Course, now: Course) -> str:
    ours = "those of this plan's --global-batch and --seq"
    if then.mixed:
        return (
            f"its last batches are of {then.batch} rows of {then.seq} tokens, {ours} of "
            f"{now.batch} rows of {now.seq}"
        )
    return (
        f"it has seen {then.samples} rows of {then.seq} tokens in {then.batches} batches, "
        f"{ours} make {now.samples} of {now.seq}"
    )


def _loss_name(loss: str) -> str:
    return loss or "cross-entropy"


def _of_options(
    then: RunOptions | None, now: RunOptions | None, names: list[str] | tuple[str, ...]
) -> Iterator[Change]:
    if then is None or now is None:
        return
    for name in names:
        both = getattr(then, name), getattr(now, name)
        if both[0] != both[1]:
            yield Change(flag(name), *map(_shown, both))


def _shown(value: Any) -> str:
    """A value as the command line has it; no group at all is "none"."""
    return (" ".join(value) or "none") if isinstance(value, tuple) else str(value)


def _rate_jump(step: int, then: RunOptions, now: RunOptions) -> str:
    rates = rate_of(step, then), rate_of(step, now)
    if abs(rates[0] - rates[1]) <= 1e-9 * max(rates):
        return ""
    found = list(_of_options(then, now, _OF_RATE))
    before = " ".join(f"{c.option} {c.then}" for c in found)
    after = " ".join(f"{c.option} {c.now}" for c in found)
    return (
        f"the learning rate of step {step} would be {rates[0]:.3e} by {before} as before and is "
        f"{rates[1]:.3e} by {after}"
    )


def _group_jump(then: RunOptions, now: RunOptions) -> str:
    """Parameters whose rate has another factor; another decay is no jump."""
    if _scales(then) == _scales(now):
        return ""
    return (
        f"learning rates had factors by --group {_shown(then.groups)} and have them by --group "
        f"{_shown(now.groups)}"
    )


def _scales(options: RunOptions) -> list[tuple[str, float]]:
    groups = map(parse_group, options.groups)
    return [(group.match, group.lr_scale) for group in groups if group.lr_scale != 1.0]
