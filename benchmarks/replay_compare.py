"""What a replay compares: texts of plans after normalisation, counts, seconds and memory."""

import difflib
import math
import re
from dataclasses import dataclass
from statistics import median

NEW_AXES = ("rep", "cp")
COST_TOLERANCE = 1e-9
SLOWER = LARGER = 1.1
OPEN_AXES = 1.3
# CPU seconds that a short search may vary by, whatever their ratio: a clock tick and a cold cache.
NOISE_S = 0.1
DIFF_LINES = 20


@dataclass(frozen=True)
class Rewrite:
    """Replace a pattern in a plan's text; a line that becomes empty is dropped.

    lines: pattern of the beginning of the lines concerned, "" for all. problems: pattern of the
    names of the problems concerned.
    """

    pattern: str
    replacement: str
    reason: str
    lines: str = ""
    problems: str = ".*"

    def apply(self, problem: str, text: str) -> str:
        if not re.fullmatch(self.problems, problem):
            return text
        lines = ((line, self._line(line)) for line in text.split("\n"))
        return "\n".join(new for old, new in lines if new or not old)

    def _line(self, line: str) -> str:
        matches = re.match(self.lines, line)
        return re.sub(self.pattern, self.replacement, line) if matches else line


# What is not part of a decision.
NORMALISATIONS = (
    Rewrite(r" v\d+$", "", "the version of the text", "meshwright plan"),
    Rewrite(rf" ({'|'.join(NEW_AXES)})=1\b", "", "an axis of size 1 may be left out", "mesh: "),
    Rewrite(r"  # [\w/.<>-]+:\d+$", "", "a source line moves with the file's text", "%"),
)
# Renames of the plan's words since BASE, old to new.
RENAMED: tuple[Rewrite, ...] = ()
# Changes of plans since BASE that are meant, each with its reason.
LISTED: tuple[Rewrite, ...] = (
    Rewrite(r"devices_per_node: \d+$", "", "plans carry the devices of a node since v2"),
    Rewrite(r"device_(type|name): .*$", "", "plans say which devices they are for"),
    Rewrite(r"predicted_host_bytes .*$", "", "plans say what a device offloads at most"),
    Rewrite(r"effort: \w+$", "", "plans say the effort of their search"),
    Rewrite(r"rounding: nearest$", "", "plans say how updates of bf16 are rounded"),
    Rewrite(r"\bpartial$", "partial(tp)", "a partial value says over which axis"),
    Rewrite(r"capture: .*$", "", "plans say how their capture was proven"),
    Rewrite(r" [\d.e-]+$", " 0", "an LP bound begins with paths of its schedule", "bound_us |gap "),
)


@dataclass(frozen=True)
class Reading:
    """What one run gave. search_cpu_s: cpu_s without tracing. pinned: new axes pinned to 1."""

    plan: str
    lp_solutions: int
    simulations: int
    cpu_s: float
    search_cpu_s: float
    mib: float
    pinned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The runs of a problem on two sides. complaints: what differs; listed: reasons used."""

    problem: str
    base: list[Reading]
    head: list[Reading]
    plans: str
    complaints: tuple[str, ...]
    diff: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()


def normalise(problem: str, text: str, rewrites: tuple[Rewrite, ...] = ()) -> str:
    """Return the text without what is no decision, old words replaced."""
    for rewrite in (*NORMALISATIONS, *RENAMED, *rewrites):
        text = rewrite.apply(problem, text)
    head, *pieces = text.split("\n[piece ")
    return "\n[piece ".join([head, *map(_numbered, pieces)])


def _numbered(piece: str) -> str:
    """Return a piece with its values numbered in order: what they are called is no decision."""
    names = dict.fromkeys(re.findall(r"%([\w.]+) : ", piece))
    numbers = {name: str(number) for number, name in enumerate(names)}
    return re.sub(r"%([\w.]+)", lambda found: f"%{numbers.get(found[1], found[1])}", piece)


def plan_difference(base: str, head: str) -> tuple[str, ...]:
    """Return the first lines of a diff of two normalised plans, nothing where they are equal."""
    base, base_costs = _without_costs(base)
    head, head_costs = _without_costs(head)
    lines = [*_cost_difference(base_costs, head_costs), *_diff(base, head)]
    return tuple(lines[:DIFF_LINES])


def _diff(base: str, head: str) -> list[str]:
    texts = base.splitlines(), head.splitlines()
    return list(difflib.unified_diff(*texts, "base", "head", n=1, lineterm=""))


def _without_costs(text: str) -> tuple[str, dict[str, float]]:
    """Split the section of costs off: its numbers are compared as numbers."""
    before, _, rest = text.partition("\n[costs]\n")
    section, _, after = rest.partition("\n\n")
    rows = (line.split(" ", 1) for line in section.splitlines() if line)
    return f"{before}\n\n{after}", {name: float(value) for name, value in rows}


def _cost_difference(base: dict[str, float], head: dict[str, float]) -> list[str]:
    names = list(dict.fromkeys([*base, *head]))
    return [
        f"cost {name}: {base.get(name)!r} {head.get(name)!r}"
        for name in names
        if not _close(base.get(name), head.get(name))
    ]


def _close(base: float | None, head: float | None) -> bool:
    if base is None or head is None:
        return False
    return math.isclose(base, head, rel_tol=COST_TOLERANCE)


def compare(problem: str, base: list[Reading], head: list[Reading]) -> Comparison:
    """Judge HEAD's runs against BASE's: the same plan and counts, at most 10% slower or larger."""
    diff, listed = _judge_plans(problem, base[0].plan, head[0].plan)
    plans = "DIFFER" if diff else "listed" if listed else "equal"
    complaints = ["plans"] if diff else []
    complaints += _unsteady("base", base) + _unsteady("head", head)
    complaints += _unequal_counts(base[0], head[0]) + _dearer(base, head)
    return Comparison(problem, base, head, plans, tuple(complaints), diff, listed)


def compare_open(problem: str, pinned: list[Reading], opened: list[Reading]) -> Comparison:
    """Judge a search with the new axes open: at most 1.3x the seconds, of any plan."""
    same = not plan_difference(*(normalise(problem, s[0].plan) for s in (pinned, opened)))
    complaints = _slower(pinned, opened, OPEN_AXES)
    return Comparison(problem, pinned, opened, "same" if same else "other", tuple(complaints))


def _judge_plans(problem: str, base: str, head: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the difference and the reasons of the listed changes that were needed."""
    used: tuple[Rewrite, ...] = ()
    while True:
        texts = [normalise(problem, text, used) for text in (base, head)]
        diff = plan_difference(*texts)
        more = [r for r in LISTED if r not in used and _touches(r, problem, texts)]
        if not diff or not more:
            return diff, tuple(r.reason for r in used)
        used = (*used, more[0])


def _touches(rewrite: Rewrite, problem: str, texts: list[str]) -> bool:
    return any(rewrite.apply(problem, text) != text for text in texts)


def _unsteady(side: str, readings: list[Reading]) -> list[str]:
    """One commit gives one plan and one count; else a comparison of first runs means nothing."""
    seen = {(r.plan, r.lp_solutions, r.simulations) for r in readings}
    return [f"{side}'s runs differ"] if len(seen) > 1 else []


def _unequal_counts(base: Reading, head: Reading) -> list[str]:
    names = {"lp_solutions": "LP solutions", "simulations": "simulations"}
    return [text for name, text in names.items() if getattr(base, name) != getattr(head, name)]


def _dearer(base: list[Reading], head: list[Reading]) -> list[str]:
    larger = ratio(base, head, "mib")
    memory = [f"memory {larger:.2f}x"] if larger > LARGER else []
    return _slower(base, head, SLOWER) + memory


def _slower(base: list[Reading], head: list[Reading], limit: float) -> list[str]:
    """Judge the whole and the search: tracing takes most of a small problem and would hide it."""
    named = {"cpu_s": "seconds", "search_cpu_s": "search seconds"}
    return [
        f"{text} {ratio(base, head, name):.2f}x"
        for name, text in named.items()
        if middle(head, name) > limit * middle(base, name) + NOISE_S * (name == "search_cpu_s")
    ]


def middle(readings: list[Reading], name: str) -> float:
    """The median of one number over runs."""
    return median(getattr(reading, name) for reading in readings)


def ratio(base: list[Reading], head: list[Reading], name: str) -> float:
    """HEAD's median over BASE's; 1 where BASE's is 0."""
    below = middle(base, name)
    return middle(head, name) / below if below else 1.0
