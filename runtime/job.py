"""Job files: one TOML for plan and run."""

import difflib
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .launch import RunOptions


class JobError(ValueError):
    """A job file that cannot be read, or holds what no option is called."""


DTYPES = ("f32", "bf16", "f64")
PLAN_OPTIONS: dict[str, Any] = {
    "cluster": "cpu:4",
    "seq": None,
    "global_batch": None,
    "dtype": "f32",
    "pin": [],
}


@dataclass(frozen=True)
class Job:
    """model: a spec. plan: options of `plan`. run: options of `run`. text: as resolved, TOML."""

    model: str
    plan: dict
    run: dict
    text: str


def load_job(path: Path, overrides: list[str]) -> Job:
    """Read a job file and apply `a.b=c` overrides. Raises JobError with the place and a way out."""
    try:
        data = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{path}: not TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise JobError(f"{path}: not text: byte {error.start} is no UTF-8") from None
    for text in overrides:
        _override(data, text)
    _check(path, data)
    plan = {**PLAN_OPTIONS, **data.get("plan", {})}
    plan["pin"] = _pins(plan["pin"])
    missing = [key for key, value in plan.items() if value is None]
    if "model" not in data or missing:
        wanted = ["model"] if "model" not in data else [f"plan.{m}" for m in missing]
        raise JobError(f"{path}: lacks {', '.join(wanted)}")
    return Job(str(data["model"]), plan, dict(data.get("run", {})), _toml(data))


def _pins(given: object) -> list[str]:
    if isinstance(given, dict):
        return [f"{key}={value}" for key, value in given.items()]
    return [str(p) for p in given] if isinstance(given, list) else [str(given)]


def _override(data: dict, text: str) -> None:
    path, found, value = text.partition("=")
    if not found:
        raise JobError(f"--set {text}: expected a.b=c")
    *tables, key = path.split(".")
    for name in tables:
        data = data.setdefault(name, {})
    try:
        data[key] = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        data[key] = value


def _check(path: Path, data: dict) -> None:
    known = {
        "": {"model", "plan", "run"},
        "plan": set(PLAN_OPTIONS),
        "run": {f.name for f in fields(RunOptions)},
    }
    _check_keys(path, "", data, known[""])
    for table in ("plan", "run"):
        if not isinstance(data.get(table, {}), dict):
            raise JobError(f"{path}: {table} is {data[table]!r}, expected a table [{table}]")
        _check_keys(path, f"{table}.", data.get(table, {}), known[table])
    for item in fields(RunOptions):
        value = data.get("run", {}).get(item.name, item.default)
        kind = type(item.default)
        if not isinstance(value, kind) and not (kind is float and isinstance(value, int)):
            raise JobError(f"{path}: run.{item.name} is {value!r}, expected {kind.__name__}")
    dtype = data.get("plan", {}).get("dtype", "f32")
    if dtype not in DTYPES:
        raise JobError(f"{path}: plan.dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    for name in ("seq", "global_batch"):
        value = data.get("plan", {}).get(name, 1)
        if not isinstance(value, int):
            raise JobError(f"{path}: plan.{name} is {value!r}, expected a whole number")


def _check_keys(path: Path, prefix: str, table: dict, known: set[str]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {prefix}{near[0]}" if near else ""
            raise JobError(
                f"{path}: unknown key {prefix}{key}{hint}; keys: {', '.join(sorted(known))}"
            )


def _toml(data: dict) -> str:
    lines = [f"{k} = {_value(v)}" for k, v in data.items() if not isinstance(v, dict)]
    for name, table in data.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]"] + [f"{k} = {_value(v)}" for k, v in table.items()]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
