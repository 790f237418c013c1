"""Arrays of jobs: %a in an option of a run stands for the number of the task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import MeshwrightError

_WITHOUT = "%a is the number of a task, and there is no --array; give a number"


def folders(out: Path, array: str) -> dict[str, Path]:
    """Return the folders of the runs of a job by what follows its id: of each task of an array.
    Raises MeshwrightError where tasks would share one."""
    from meshwright.runtime.slurm.scheduler import TASK
    from meshwright.runtime.slurm.script import array_tasks

    if not array:
        return {"": out}
    tasks = array_tasks(array)
    if TASK not in str(out) and len(tasks) > 1:
        raise MeshwrightError(
            f"--array {array}: {len(tasks)} tasks would write to one folder, {out}; give --out a "
            f"name with {TASK}, which stands for the number of the task"
        )
    return {f"_{n}": Path(str(out).replace(TASK, str(n))) for n in tasks}


def of_first_task(options: Mapping[str, Any], array: str) -> dict[str, Any]:
    """Return the options of the run of an array's first task, those of every run without one.
    Raises MeshwrightError for a number that is none."""
    from argparse import ArgumentTypeError
    from dataclasses import fields

    from meshwright.runtime.slurm.scheduler import TASK
    from meshwright.runtime.training.options import SPANS, RunOptions, flag
    from meshwright.runtime.training.spans import parse_span

    kinds: dict[str, Any] = {item.name: type(item.default) for item in fields(RunOptions)}
    kinds |= dict.fromkeys(SPANS, parse_span)
    found = dict(options)
    for name, value in options.items():
        if (
            not isinstance(value, str)
            or TASK not in value
            or (kinds.get(name, str) is str and not array)
        ):
            continue
        text = in_first_task(value, array)
        try:
            found[name] = kinds[name](text)
        except (ValueError, ArgumentTypeError):
            what = f"{text!r} in the first task, give a number" if array else _WITHOUT
            raise MeshwrightError(f"{flag(name)} {value}: {what}") from None
    return found


def is_of_a_task(value: Any, array: str) -> bool:
    """Tell whether a value is another one in each task of an array."""
    from meshwright.runtime.slurm.scheduler import TASK

    return bool(array) and isinstance(value, str) and TASK in value


def in_first_task(text: str, array: str) -> str:
    """Return a text as the first task of an array has it."""
    from meshwright.runtime.slurm.scheduler import TASK
    from meshwright.runtime.slurm.script import array_tasks

    return text.replace(TASK, str(array_tasks(array)[0])) if array else text


def run_values(overrides: Sequence[str], array: str) -> dict[str, str]:
    """Return by name the values of a job file's [run], as `run.b=c`, that differ by task."""
    given = (text.partition("=")[::2] for text in overrides)
    named = {name.removeprefix("run."): value for name, value in given if name[:4] == "run."}
    return {name: value for name, value in named.items() if is_of_a_task(value, array)}
