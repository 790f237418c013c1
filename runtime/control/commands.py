"""Commands to a live run, as data that all ranks carry out in the same step."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

# What each command does, as `meshwright control --help` says it.
COMMANDS = {
    "save": "write a checkpoint after the step under way",
    "stop": "end the run after the step under way, without a checkpoint",
    "save-stop": "write a checkpoint after the step under way, and end the run",
    "abort": "end the run at once, whatever it is doing; steps since the last checkpoint are lost",
    "set": "change options of the run from the next step on: lr=1e-4, schedule=constant, ...",
    "profile": "write a trace of the next --steps steps of every rank, for Perfetto",
    "stragglers": "time the next --steps steps of every rank, and say which one the others await",
}
# Options of a run that may change while it goes on.
SETTABLE = ("lr", "schedule", "warmup", "floor", "save_every", "save_minutes", "keep", "eval_every",
            "eval_batches", "log_every")  # fmt: skip
MOST_STEPS = 100


class CommandError(ValueError):
    """A command that is none, or whose values cannot be taken."""


@dataclass(frozen=True)
class Command:
    """do: of COMMANDS. values: options by name, of `set`. steps: of a window of steps."""

    do: str
    values: Mapping[str, str] = field(default_factory=dict)
    steps: int = 3

    def __post_init__(self) -> None:
        if self.do not in COMMANDS:
            raise CommandError(f"unknown command {self.do!r}{_near(self.do, COMMANDS)}")
        for name in self.values:
            if name not in SETTABLE:
                raise CommandError(f"{name} cannot be set in a live run{_near(name, SETTABLE)}")
        if self.do == "set" and not self.values:
            raise CommandError(
                f"set: 0 options are given; give NAME=VALUE of {', '.join(SETTABLE)}"
            )
        if not 1 <= self.steps <= MOST_STEPS:
            raise CommandError(f"--steps {self.steps}: give 1 to {MOST_STEPS}")


def _near(word: str, known: Mapping[str, str] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    hint = f"; did you mean {close[0]}?" if close else ";"
    return f"{hint} there are {', '.join(known)}"


def parse_command(text: str) -> Command:
    """Return the command of a JSON object. Raises CommandError."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise CommandError(f"not JSON: {text[:40]!r}") from None
    if not isinstance(said, dict) or not set(said) <= {"do", "values", "steps"}:
        raise CommandError(f"expected an object of do, values and steps, found {text[:40]!r}")
    do, values, steps = said.get("do"), said.get("values", {}), said.get("steps", 3)
    plain = isinstance(values, dict) and all(isinstance(v, str) for v in values.values())
    if not isinstance(do, str) or not plain or type(steps) is not int:
        raise CommandError(f"do is {do!r}, values {values!r}, steps {steps!r}: of another type")
    return Command(do, values, steps)


def format_commands(commands: list[Command]) -> str:
    """Return commands as one text, which parse_commands reads."""
    return json.dumps([asdict(command) for command in commands])


def parse_commands(text: str) -> list[Command]:
    """Return the commands of a text of format_commands."""
    return [Command(**said) for said in json.loads(text)]
