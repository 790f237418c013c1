"""Job files: one TOML for plan and run.

extends = "base.toml"       # optional: another job file, whose values this one overrides
model = "llama-125m"
restarts = 3                # times a run whose rank died or hung starts again by itself

[plan]                      # options of `meshwright plan`
cluster = "h200:8"
seq = 4096
global_batch = 64
pin = ["tp=2"]              # or a table: pin = { tp = 2 }
freeze = "embed.*"          # parameters that are not trained
loss = "py:losses:smoothed" # of logits and labels, in place of the cross-entropy

[run]                       # options of `meshwright run`
data = "file:corpus.bin"
steps = 1000                # or tokens: "2e9tok", "500Mtok"

[[run.groups]]              # the first that fits a parameter's logical name counts
match = "*.bias"
lr_scale = 0.5
weight_decay = 0.0
"""

import difflib
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..training.options import SPANS, OptionError, RunOptions, group_texts, run_options
from ..training.spans import SpanError, is_tokens


class JobError(ValueError):
    """A job file that cannot be read, or holds what no option is called."""


DTYPES = ("f32", "bf16", "f64")
EFFORTS = ("fast", "normal", "best")
TOP = {"model": str, "extends": str, "restarts": int}
# Option -> (type, default); None: it must be given.
PLAN: dict[str, tuple[type | tuple[type, ...], Any]] = {
    "cluster": (str, "auto"),
    "gpu_memory": (str, ""),
    "host_memory": (str, ""),
    "seq": (int, None),
    "global_batch": (int, None),
    "dtype": (str, ""),  # as the cluster's devices have it
    "pin": ((list, dict, str), []),
    "freeze": (str, ""),
    "update_router_bias": (bool, False),
    "loss": (str, ""),
    "search": (bool, True),
    "effort": (str, "normal"),
    "prove_full": (bool, False),
    "trust_capture": (bool, False),
}
RUN: dict[str, type | tuple[type, ...]] = {
    **{f.name: list if f.default == () else type(f.default) for f in fields(RunOptions)},
    **dict.fromkeys(SPANS, (int, str)),
}


@dataclass(frozen=True)
class Job:
    """path: of the file. model: a spec. plan: options of `plan`. run: options of `run`. text: as
    resolved, TOML."""

    path: Path
    model: str
    restarts: int
    plan: dict
    run: dict
    text: str


def load_job(path: Path, overrides: list[str]) -> Job:
    """Read a job file and what it extends, then apply `a.b=c` overrides.

    Raises JobError with the place and a way out.
    """
    data = _read(path, ())
    for text in overrides:
        _override(data, text)
        _check(f"--set {text}", data)
    _check_run(path, data)
    plan = {**{name: default for name, (_, default) in PLAN.items()}, **data.get("plan", {})}
    plan["pin"] = _pins(plan["pin"])
    missing = [f"plan.{key}" for key, value in plan.items() if value is None]
    missing = ["model"] * ("model" not in data) + missing
    if missing:
        raise JobError(f"{path}: lacks {', '.join(missing)}")
    run = dict(data.get("run", {}))
    if "groups" in run:
        run["groups"] = group_texts(run["groups"])
    return Job(path, data["model"], data.get("restarts", 0), plan, run, _toml(data))


def _read(path: Path, above: tuple[Path, ...]) -> dict:
    """A file's tables over those of the file that it extends."""
    _check_chain(path, above)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{path}: not TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise JobError(f"{path}: not text: byte {error.start} is no UTF-8") from None
    below = data.pop("extends", None)
    _check(str(path), data)
    if below is None:
        return data
    if not isinstance(below, str):
        raise JobError(f"{path}: extends is {below!r}, expected the path of a job file")
    return _merged(_read(path.parent / below, (*above, path.resolve())), data)


def _check_chain(path: Path, above: tuple[Path, ...]) -> None:
    if path.resolve() in above:
        chain = " -> ".join(p.name for p in (*above, path))
        raise JobError(f"{path}: extends itself: {chain}")


def _merged(below: dict, over: dict) -> dict:
    """Tables merge key by key; everything else is replaced."""
    out = dict(below)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merged(out[key], value) if both else value
    return out


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
        if not isinstance(data, dict):
            raise JobError(f"--set {text}: {name} is {data!r}, not a table")
    try:
        data[key] = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        data[key] = value


def _check(where: str, data: dict) -> None:
    """Known keys, right types. where: the file they stand in, or the --set that gives them."""
    _check_keys(where, "", data, {*TOP, "plan", "run"})
    for name, kind in TOP.items():
        _check_type(where, name, data.get(name, kind()), kind)
    tables: dict[str, dict] = {"plan": {k: kind for k, (kind, _) in PLAN.items()}, "run": RUN}
    for table, known in tables.items():
        values = data.get(table, {})
        if not isinstance(values, dict):
            raise JobError(f"{where}: {table} is {values!r}, expected a table [{table}]")
        _check_keys(where, f"{table}.", values, set(known))
        for name, value in values.items():
            _check_type(where, f"{table}.{name}", value, known[name])
    _check_spans(where, data.get("run", {}))
    for name, choices in (("dtype", DTYPES), ("effort", EFFORTS)):
        word = data.get("plan", {}).get(name, "")
        if word and word not in choices:
            raise JobError(
                f"{where}: plan.{name} is {word!r}, expected one of {', '.join(choices)}"
            )
    if data.get("restarts", 0) < 0:
        raise JobError(f"{where}: restarts is {data['restarts']}, expected at least 0")


def _check_spans(where: str, run: dict) -> None:
    """A length that is a string gives tokens."""
    for name in SPANS:
        value = run.get(name, 0)
        if isinstance(value, str) and not is_tokens(value):
            raise JobError(
                f"{where}: run.{name} is {value!r}, expected a whole number, or tokens as "
                '"2e9tok" or "500Mtok"'
            )


def _check_run(path: Path, data: dict) -> None:
    """The values of [run], as the command line has them."""
    try:
        run_options(data.get("run", {}), lambda: _tokens_per_step(path, data.get("plan", {})))
    except (OptionError, SpanError) as error:
        raise JobError(f"{path}: [run] {error}") from None


def _tokens_per_step(path: Path, plan: dict) -> int:
    missing = [f"plan.{name}" for name in ("seq", "global_batch") if name not in plan]
    if missing:
        raise JobError(f"{path}: lacks {', '.join(missing)}")
    return plan["seq"] * plan["global_batch"]


def _check_type(where: str, name: str, value: object, kind: type | tuple[type, ...]) -> None:
    """Exact types, as true is an int to Python; a whole number will do for a float."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    kinds = (*kinds, int) if float in kinds else kinds
    if type(value) not in kinds:
        wanted = " or ".join(_WORDS[k] for k in kinds)
        raise JobError(f"{where}: {name} is {value!r}, expected {wanted}")


_WORDS = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def _check_keys(where: str, prefix: str, table: dict, known: set[str]) -> None:
    for key in table:
        if key not in known:
            _check_table(where, prefix, key)
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {prefix}{near[0]}" if near else ""
            raise JobError(
                f"{where}: unknown key {prefix}{key}{hint}; keys: {', '.join(sorted(known))}"
            )


def _check_table(where: str, prefix: str, key: str) -> None:
    """Raise JobError for a key of another table than the one it stands in."""
    tables: dict[str, Collection[str]] = {"plan": PLAN, "run": RUN}
    homes = [f"in [{name}], as {name}.{key}" for name, keys in tables.items() if key in keys]
    homes += ["at the top, before the first table"] if key in TOP else []
    if homes:
        raise JobError(f"{where}: {prefix}{key} belongs {' or '.join(homes)}")


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
