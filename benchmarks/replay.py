"""Two commits plan the same problems in turn, on this machine: equal plans, counts and cost.

    python benchmarks/replay.py --base COMMIT [PROBLEM ...] [--runs 5] [--large] [--json FILE]
    python benchmarks/replay.py --open-axes [PROBLEM ...]

The base is checked out into a temporary git worktree; the other side, head, is the working tree
with its uncommitted changes. Each run is a process of its own, in turn base, head, base, head;
medians are compared. --open-axes prints a second table: head with its newer mesh axes pinned to 1
against head with them open. Exit code 0: all equal; 1: not, as the table says; 2: bad input.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from replay_compare import (
    NEW_AXES,
    Comparison,
    Reading,
    compare,
    compare_open,
    middle,
    ratio,
)
from replay_problems import LARGE, SMALL, Problem

ROOT = Path(__file__).resolve().parents[1]
SIDE = Path(__file__).with_name("replay_side.py")
HEADER = (
    "| problem | plan | LP solutions base, head | simulations base, head | CPU s base | head "
    "| ratio | of it search | MiB base | head | ratio | verdict |"
)


class ReplayError(Exception):
    """A message for the user: an unknown commit or problem, or a run that failed."""


class Side:
    """A checkout that plans. axes: new mesh axes to pin to 1 where the checkout knows them."""

    def __init__(self, checkout: Path, work: Path, axes: tuple[str, ...] = NEW_AXES) -> None:
        self.checkout, self.work, self.axes = checkout, work, axes
        work.mkdir()
        # First on PYTHONPATH, the link wins over an editable install of any checkout.
        (work / "meshwright").symlink_to(checkout, target_is_directory=True)

    def run(self, problem: Problem) -> Reading:
        """Plan in a fresh process. Raises ReplayError with the last line of its complaint."""
        spec = self._spec(problem)
        path = self.work / "spec.json"
        path.write_text(json.dumps(spec))
        done = subprocess.run(
            [sys.executable, str(SIDE), str(path)],
            cwd=self.work, env=self._environment(), capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ReplayError(f"{problem.name} in {self.work.name}: {lines[-1]}")
        reading = json.loads(Path(spec["reading"]).read_text())
        reading["pinned"] = tuple(reading["pinned"])
        return Reading(plan=Path(spec["plan"]).read_text(), **reading)

    def _spec(self, problem: Problem) -> dict:
        return {
            "checkout": str(self.checkout),
            "arguments": problem.arguments(),
            "axes": self.axes,
            "plan": str(self.work / "plan.txt"),
            "reading": str(self.work / "reading.json"),
        }

    def _environment(self) -> dict[str, str]:
        # One thread: CPU seconds of waiting threads are no work. A capture that was kept would be
        # read by the side that keeps captures, and traced by the other.
        cache = self.work / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        own = {"PYTHONPATH": str(self.work), "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own}


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    if done.returncode:
        raise ReplayError(f"git {words[0]}: {done.stderr.strip() or 'failed'}")
    return done.stdout.strip()


def _commit(base: str) -> str:
    """The hash of a commit's name. Raises ReplayError where git knows none."""
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}")
    except ReplayError:
        raise ReplayError(f"BASE={base}: no such commit; give a hash, tag or branch") from None


@contextmanager
def _worktree(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out; it and git's note of it are gone at the end."""
    _git("worktree", "add", "--detach", str(folder), commit)
    try:
        # Else the first run alone would pay for it; the working tree's is there from earlier runs.
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(folder)], check=False)
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _alternate(problem: Problem, sides: tuple[Side, Side], runs: int) -> list[list[Reading]]:
    """Return the readings of both sides, taken in turn: a slow minute strikes both."""
    readings: list[list[Reading]] = [[], []]
    for k in range(runs):
        for side, into in zip(sides, readings, strict=True):
            into.append(side.run(problem))
        last = [f"{into[-1].cpu_s:.2f}" for into in readings]
        print(f"{problem.name} {k + 1}/{runs}: {', '.join(last)} CPU s", file=sys.stderr)
    return readings


def _row(found: Comparison) -> str:
    base, head = found.base, found.head
    counts = [
        f"{getattr(base[0], n)}, {getattr(head[0], n)}" for n in ("lp_solutions", "simulations")
    ]
    cpu, mib = (_pair(found, name, digits) for name, digits in (("cpu_s", 2), ("mib", 0)))
    search = f"{ratio(base, head, 'search_cpu_s'):.2f}"
    verdict = f"FAIL: {', '.join(found.complaints)}" if found.complaints else "ok"
    return f"| {' | '.join([found.problem, found.plans, *counts, *cpu, search, *mib, verdict])} |"


def _pair(found: Comparison, name: str, digits: int) -> list[str]:
    """The medians of both sides and their ratio, as text."""
    medians = [f"{middle(side, name):.{digits}f}" for side in (found.base, found.head)]
    return [*medians, f"{ratio(found.base, found.head, name):.2f}"]


Judge = Callable[[str, list[Reading], list[Reading]], Comparison]


def _table(
    problems: list[Problem], sides: tuple[Side, Side], runs: int, judge: Judge
) -> list[Comparison]:
    """Run and judge all problems; print a row each as it is known, and the diffs after it."""
    print(HEADER)
    print("|---" * (HEADER.count("|") - 1) + "|", flush=True)
    found = []
    for problem in problems:
        found.append(_judged(problem, sides, runs, judge))
        print(_row(found[-1]) if found[-1].base else _failed_row(found[-1]), flush=True)
    for one in found:
        _print_notes(one)
    return found


def _judged(problem: Problem, sides: tuple[Side, Side], runs: int, judge: Judge) -> Comparison:
    """A comparison, or where a side cannot plan the problem one that says so."""
    try:
        return judge(problem.name, *_alternate(problem, sides, runs))
    except ReplayError as error:
        return Comparison(problem.name, [], [], "none", (str(error),))


def _failed_row(found: Comparison) -> str:
    return f"| {found.problem} | none {'| ' * 10}| FAIL: {found.complaints[0]} |"


def _print_notes(found: Comparison) -> None:
    for reason in found.listed:
        print(f"{found.problem}: listed: {reason}")
    if found.diff:
        print(f"{found.problem}: the first lines that differ:")
        print("\n".join(f"  {line}" for line in found.diff))


def _summary(found: list[Comparison], title: str) -> str:
    good = sum(not one.complaints for one in found)
    whole = [one for one in found if one.base]
    both = [sum(middle(getattr(one, s), "cpu_s") for one in whole) for s in ("base", "head")]
    ratio_of_sums = both[1] / both[0] if both[0] else 1.0
    return (
        f"{title}: {good} of {len(found)} ok; CPU s in all {both[0]:.1f}, {both[1]:.1f}, "
        f"ratio {ratio_of_sums:.3f}"
    )


def _replay(options: argparse.Namespace, problems: list[Problem], work: Path) -> list[Comparison]:
    """Print and return the first table: the base against the working tree."""
    commit = _commit(options.base)
    with _worktree(commit, work / "checkout") as checkout:
        sides = Side(checkout, work / "base"), Side(ROOT, work / "head")
        found = _table(problems, sides, options.runs, compare)
    print(_summary(found, f"base {commit[:10]}, head the working tree on {_commit('HEAD')[:10]}"))
    return found


def _open_axes(problems: list[Problem], runs: int, work: Path) -> list[Comparison]:
    """Print and return the second table, which is empty where head has no such pins."""
    pinned, opened = Side(ROOT, work / "pinned"), Side(ROOT, work / "open", ())
    if not pinned.run(problems[0]).pinned:
        print(f"open axes: head has no pins {', '.join(NEW_AXES)}; nothing to open")
        return []
    found = _table(problems, (pinned, opened), runs, compare_open)
    print(_summary(found, "base: new axes pinned to 1, head: open"))
    return found


def _chosen(names: list[str], large: bool) -> list[Problem]:
    """The problems of these names, or all small ones. Raises ReplayError for an unknown name."""
    known = {problem.name: problem for problem in (*SMALL, *LARGE)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ReplayError(f"{unknown[0]}: unknown problem; one of {', '.join(known)}")
    return [known[n] for n in names] or [*SMALL, *(LARGE if large else ())]


def _plain(found: Comparison) -> dict:
    """A comparison as JSON takes it; the plans themselves are left out."""
    plain = asdict(found)
    for reading in (*plain["base"], *plain["head"]):
        del reading["plan"]
    return plain


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", help="names of problems (default: the small ones)")
    parser.add_argument("--base", metavar="COMMIT", help="compare the working tree with COMMIT")
    parser.add_argument("--runs", type=int, default=5, help="of each side (default: 5)")
    parser.add_argument("--large", action="store_true", help="the large problems, too: long")
    parser.add_argument("--open-axes", action="store_true", help=f"open {', '.join(NEW_AXES)}")
    parser.add_argument("--json", metavar="FILE", help="write every reading to FILE")
    return parser.parse_args()


def _compare_all(options: argparse.Namespace) -> list[Comparison]:
    """Print and return the tables asked for. Raises ReplayError for bad input."""
    problems = _chosen(options.problems, options.large)
    with tempfile.TemporaryDirectory(prefix="replay-") as work:
        found = _replay(options, problems, Path(work)) if options.base else []
        if options.open_axes:
            found += _open_axes(problems, options.runs, Path(work))
    return found


def main() -> int:
    """Print the table; 0 where all is equal, 1 where not, 2 on bad input."""
    options = _options()
    try:
        _check(options)
        found = _compare_all(options)
    except ReplayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        Path(options.json).write_text(json.dumps([_plain(one) for one in found], indent=1) + "\n")
    return int(any(one.complaints for one in found))


def _check(options: argparse.Namespace) -> None:
    if not options.base and not options.open_axes:
        raise ReplayError("no BASE; give a commit, such as make replay BASE=HEAD")
    if options.runs < 1:
        raise ReplayError(f"--runs {options.runs}: at least 1")


if __name__ == "__main__":
    sys.exit(main())
