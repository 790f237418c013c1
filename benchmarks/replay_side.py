"""One planning run of one checkout, in a process of its own; `replay.py` starts it.

    python benchmarks/replay_side.py SPEC.json

The checkout may be older or newer than this file, so no module path below a room is written here:
functions are found by name, and the plan is made by the command line.
"""

import contextlib
import importlib
import io
import json
import pkgutil
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOMS = ("ir", "models", "planner")
ALONE = (("--trust-capture",), ("--processes", "1"))


def main() -> int:
    """Plan what the file SPEC says and write the reading to the file it names."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    _check_origin(spec["checkout"])
    modules = list(_modules())
    known = {field.name for field in fields(_find(modules, "Pins"))}
    pinned = [axis for axis in spec["axes"] if axis in known]
    pins = [word for axis in pinned for word in ("--pin", f"{axis}=1")]
    asked = _without_unknown(spec["arguments"], known)
    reading = _read(modules, [*asked, *pins, *_alone(), "-o", spec["plan"]])
    Path(spec["reading"]).write_text(json.dumps({**reading, "pinned": pinned}))
    return 0


def _without_unknown(words: list[str], known: set[str]) -> list[str]:
    """The words of a command without pins that a side does not know, as of an older commit."""
    kept: list[str] = []
    for word in words:
        if kept and kept[-1] == "--pin" and word.partition("=")[0] not in known:
            kept.pop()
        else:
            kept.append(word)
    return kept


def _alone() -> list[str]:
    """Return what this side knows of the options that leave the proof of a capture out, and other
    processes, whose work would not be counted."""
    help_text = io.StringIO()
    with contextlib.redirect_stdout(help_text), contextlib.suppress(SystemExit):
        importlib.import_module("meshwright.cli").main(["plan", "--help"])
    known = [option for option in ALONE if option[0] in help_text.getvalue()]
    return [word for option in known for word in option]


def _check_origin(checkout: str) -> None:
    """Exit where the package is not of this checkout, as with an editable install that wins."""
    package = importlib.import_module("meshwright")
    found = Path(str(package.__file__)).resolve().parent
    if found != Path(checkout).resolve():
        sys.exit(f"meshwright is imported from {found}, expected {checkout}")


def _modules() -> Iterator[ModuleType]:
    """Import and return every module of the planning rooms: imports are no part of the time."""
    yield importlib.import_module("meshwright.cli")
    for room in ROOMS:
        package = importlib.import_module(f"meshwright.{room}")
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(info.name)


def _find(modules: list[ModuleType], name: str) -> Any:
    """Return the one public class or function of this name that a planning room defines."""
    values = (vars(module).get(name) for module in modules)
    own = {id(v): v for v in values if str(getattr(v, "__module__", "")).startswith("meshwright.")}
    found = [v for v in own.values() if callable(v) or is_dataclass(v)]
    if len(found) != 1:
        sys.exit(f"{len(found)} definitions of {name} in {', '.join(ROOMS)}, expected 1")
    return found[0]


def _read(modules: list[ModuleType], arguments: list[str]) -> dict[str, float]:
    """Run the command; return its counts, CPU seconds and peak memory in MiB."""
    calls = _watch(modules)
    total = _run(arguments)
    return {
        "lp_solutions": len(calls["solution"]),
        "simulations": len(calls["simulate"]),
        "cpu_s": total,
        "search_cpu_s": total - sum(calls["trace"]),
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _watch(modules: list[ModuleType]) -> dict[str, list[float]]:
    """Return lists that fill with the CPU seconds of each call that is counted."""
    calls: dict[str, list[float]] = {"simulate": [], "trace": [], "solution": []}
    for name in ("simulate", "trace"):
        function = _find(modules, name)
        _replace(function, _timed(function, calls[name]))
    _count_solutions(calls["solution"])
    return calls


def _run(arguments: list[str]) -> float:
    """Run the command line; return its CPU seconds. Exits with its code where it fails."""
    command = importlib.import_module("meshwright.cli").main
    before = _cpu_s()
    with contextlib.redirect_stdout(io.StringIO()):
        code = command(arguments)
    if code:
        sys.exit(code)
    return _cpu_s() - before


def _timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """Wrap a function so that each call adds its CPU seconds to the list."""

    def call(*args: Any, **options: Any) -> Any:
        before = _cpu_s()
        try:
            return function(*args, **options)
        finally:
            seconds.append(_cpu_s() - before)

    return call


def _replace(old: object, new: object) -> None:
    """Put `new` where any module of the package holds `old`: names are imported, not looked up."""
    modules = [m for name, m in sys.modules.items() if name.startswith("meshwright.")]
    holders = [(m, name) for m in modules for name, value in vars(m).items() if value is old]
    for module, name in holders:
        setattr(module, name, new)


def _count_solutions(seconds: list[float]) -> None:
    """Count at the door of OR-tools: every linear and branching solution, whoever asks for it."""
    solver = importlib.import_module("ortools.linear_solver.pywraplp").Solver
    solver.Solve = _method(solver.Solve, seconds)


def _method(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    timed = _timed(function, seconds)
    return lambda self, *args: timed(self, *args)


def _cpu_s() -> float:
    """CPU seconds of this process and of the children it has waited for."""
    usages = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    sys.exit(main())
