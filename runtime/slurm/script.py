"""`job.sbatch`: the script that Slurm runs on the first node of a job."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ..roles import SUPERVISE
from .scheduler import SlurmError

# Seconds before the end of a job's time at which its ranks save; of a short job a tenth.
STOP_S, STOP_SHARE = 600, 0.1
DEFAULT_TIME = "24:00:00"


@dataclass(frozen=True)
class Demands:
    """Demands on Slurm, by sbatch's own words; "" and 0 are left out.

    nodes: a number, or the least and the most as 2-4. time: as Slurm writes it, 12:00:00 or
    1-00:00:00. dependency: after which jobs. output: of the job's log, in Slurm's patterns.
    """

    job_name: str
    nodes: str
    time: str = DEFAULT_TIME
    gpus_per_node: int = 0
    gres: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    array: str = ""
    dependency: str = ""
    output: str = "%x-%j.out"
    exclusive: bool = True

    def __post_init__(self) -> None:
        for item in fields(self):
            _check_text(item.name, str(getattr(self, item.name)))
        node_range(self.nodes)
        seconds(self.time)


def node_range(nodes: str) -> tuple[int, int]:
    """Return the least and the most of nodes that are given as a number, or as 2-4. Raises
    SlurmError."""
    match = re.fullmatch(r"([1-9][0-9]*)(?:-([1-9][0-9]*))?", nodes)
    if match is None:
        raise SlurmError(f"--nodes {nodes}: give a number from 1 on, or least-most as 2-4")
    least, most = int(match[1]), int(match[2] or match[1])
    if least > most:
        raise SlurmError(f"--nodes {nodes}: {least} is more than {most}; give {most}-{least}")
    return least, most


def seconds(time: str) -> int:
    """Return the seconds of a length of time as Slurm writes it: minutes, minutes:seconds,
    hours:minutes:seconds, or days- before hours, hours:minutes or all three. Raises SlurmError."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if match is None:
        raise SlurmError(f"--time {time}: write HOURS:MINUTES:SECONDS or DAYS-HOURS, as 12:00:00")
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        units = (3600, 60, 1)
    else:
        units = ((60,), (60, 1), (3600, 60, 1))[len(parts) - 1]  # type: ignore[assignment]
    total = 86400 * int(days or 0) + sum(n * unit for n, unit in zip(parts, units, strict=False))
    if total < 1:
        raise SlurmError(f"--time {time}: 0 seconds; give the time that the run may take")
    return total


def stop_before_s(time: str) -> int:
    """Return the seconds before the end of a job's time at which its ranks save and stop."""
    return min(STOP_S, max(round(STOP_SHARE * seconds(time)), 1))


@dataclass(frozen=True)
class Script:
    """The body of a job's script.

    said: comments on what runs. setup: lines of shell before the start. folder: in which it runs,
    as a word of shell. python: the interpreter. supervisor: what it runs, a program's main.py or a
    module as -m NAME. words: options of the job. run: options of the run.
    """

    said: Sequence[str]
    setup: Sequence[str]
    folder: str
    python: str
    supervisor: Sequence[str]
    words: Sequence[str]
    run: Sequence[str]
    given: bool = False  # options that sbatch hands to the script follow those of the run


def script_text(demands: Demands, script: Script) -> str:
    """Return the text of a job's script. Words of the user reach the shell quoted."""
    lines = ["#!/usr/bin/env bash", *_directives(demands)]
    lines += [f"# {_in_one_line(said)}" for said in script.said]
    lines += ["set -euo pipefail", *script.setup, f"cd {script.folder}"]
    # In the shell's place, so that Slurm's signals reach it.
    lines.append(f"exec {shlex.quote(script.python)} {_command(script)}")
    return "\n".join(lines) + "\n"


def _in_one_line(text: str) -> str:
    """Return a comment that ends where its line does, whatever a user calls a folder."""
    return "".join(c if c.isprintable() else "?" for c in text)


def log_pattern(folder: Path, *, array: bool) -> str:
    """Return the file of a job's log in a folder, as sbatch has it: of an array %a of the folder's
    name stands for the number of the task, any other % for itself. Raises SlurmError."""
    if "\\" in str(folder):
        raise SlurmError(
            f"--out {folder.parent}: sbatch takes each backslash in the path of a log for its own; "
            "give another folder"
        )
    text = str(folder).replace("%", "%%")
    return f"{text.replace('%%a', '%a') if array else text}/job-%j.log"


def array_tasks(array: str) -> list[int]:
    """Return the numbers of the tasks of an array: 0-3, 1,4,7 or 0-9:3, and how many at a time as
    0-9%2. Raises SlurmError."""
    found: list[int] = []
    for part in array.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::([1-9]\d*))?)?", part)
        if match is None:
            raise SlurmError(f"--array {array}: {part!r} is no task; write 0-3, 1,4,7 or 0-9:3")
        first, last = int(match[1]), int(match[2] or match[1])
        found += range(first, last + 1, int(match[3] or 1))
    if not found:
        raise SlurmError(f"--array {array}: 0 tasks; write 0-3, 1,4,7 or 0-9:3")
    return found


def _command(script: Script) -> str:
    is_module = script.supervisor[0] == "-m"
    words = script.supervisor if is_module else [*script.supervisor, SUPERVISE]
    parts = [shlex.join(words), *_pairs(script.words), "--", *_pairs(script.run)]
    if script.given:
        parts.append('"$@"')
    return " \\\n    ".join(parts)


def _pairs(words: Sequence[str]) -> Iterator[str]:
    """Yield an option and its value together, quoted."""
    line: list[str] = []
    for word in words:
        if word.startswith("--") and line:
            yield shlex.join(line)
            line = []
        line.append(word)
    if line:
        yield shlex.join(line)


def _directives(demands: Demands) -> Iterator[str]:
    """Yield the options of sbatch that the head of a script gives."""
    for item in fields(demands):
        value = getattr(demands, item.name)
        name = item.name.replace("_", "-")
        if isinstance(value, bool):
            if value:
                yield f"#SBATCH --{name}"
        elif value:
            yield f"#SBATCH --{name}={_quoted(str(value))}"
    yield "#SBATCH --ntasks-per-node=1"
    yield "#SBATCH --no-kill"
    yield "#SBATCH --open-mode=append"
    yield f"#SBATCH --signal=B:USR1@{stop_before_s(demands.time)}"
    yield "#SBATCH --requeue"


def _quoted(value: str) -> str:
    """Return a value as sbatch reads it in the head of a script, which no shell does."""
    if re.fullmatch(r"[\w%@:,.=+/\-]*", value, re.ASCII):
        return value
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _check_text(name: str, value: str) -> None:
    """Raise SlurmError for what would end a line of the head."""
    if not value.isprintable():
        raise SlurmError(
            f"--{name.replace('_', '-')} {value!r}: holds a character that cannot be printed, such "
            "as the end of a line; leave it out"
        )
