"""The table of `what-if`: as text, as CSV, and as data."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.planner.what_if.answers import Answer

OBJECTIVES = ("time", "cost", "energy", "memory", "hardware")
_GIB = 2.0**30
# By objective the figure of a part that it ranks by.
FIGURES = {"cost": "price_per_hour", "energy": "watts"}


def unknown_figure(objective: str, parts: Sequence[str]) -> ValueError:
    """Return the error of an objective whose figure no part has."""
    return ValueError(
        f"--objective {objective}: {FIGURES[objective]} of {', '.join(parts)} is not known; give "
        "it in --prices FILE"
    )


@dataclass
class Table:
    """Answers in the order asked.

    subject: the model, or the plan's file. speed: in words. tokens: of a budget, None for none.
    compared: pins of others, the answers under them, which have a column. searched: else priced.
    software: the profile that has a column, "" for none. prices: whether a file of them was given.
    repeated: clusters that were given more than once. stopped: whether points that were asked are
    missing.
    """

    subject: str
    speed: str
    objective: str
    tokens: float | None
    compared: tuple[str, ...]
    searched: bool
    software: str = ""
    prices: bool = False
    repeated: tuple[str, ...] = ()
    answers: "list[Answer]" = field(default_factory=list)
    others: "list[Answer]" = field(default_factory=list)
    stopped: bool = False

    @property
    def _by_hardware(self) -> bool:
        return self.objective == "hardware"

    @property
    def best(self) -> "Answer | None":
        """Return the answer with the least of the objective; None where nothing fits."""
        found = min(self.answers, key=lambda answer: answer.rank(self.objective))
        return found if found.rank(self.objective)[0] < float("inf") else None

    def check_planned(self) -> None:
        """Raise ValueError where no point has a layout, and not for the memory of a device: with
        the reason, or with each reason and a point that it refuses."""
        refused = all(answer.step is None and not answer.need_bytes for answer in self.answers)
        if not refused or not self.answers or self.stopped:
            return
        points = {answer.why: answer.point.cluster.name for answer in reversed(self.answers)}
        if len(points) == 1:
            raise ValueError(*points)
        said = (f"{name}: {why}" for why, name in reversed(points.items()))
        raise ValueError(f"no point has a layout; {'; '.join(said)}")

    def check_objective(self) -> None:
        """Raise ValueError where no part that fits has the figure that the objective ranks by."""
        found = sorted({a.point.cluster.device.name for a in self.answers if a.step})
        if found and self.best is None:
            raise unknown_figure(self.objective, found)

    @property
    def facts(self) -> dict[str, Any]:
        """Return what --json prints."""
        points = [
            {**row, "best": answer is self.best}
            for answer, row in zip(self.answers, self._rows(), strict=True)
        ]
        return {
            "speed": self.speed,
            "objective": self.objective,
            "compared": list(self.compared),
            "stopped": self.stopped,
            "points": points,
        }

    @property
    def csv(self) -> str:
        """Return a line for each point, with a column for each sweep."""
        rows = [{**row.pop("swept"), **row} for row in self._rows()]
        text = io.StringIO()
        names = [name for name in rows[0] if name != "shares"]
        writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    @property
    def text(self) -> str:
        """Return the table, with the plans below it."""
        head = self._head()
        rows = [head]
        for number, answer in enumerate(self.answers, start=1):
            cells = self._cells(answer, self._other(answer), len(head) - 2)
            rows.append(["*" if answer is self.best else "", str(number), *cells])
        widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
        lines = ["  ".join(map(_padded, row, widths, head)).rstrip() for row in rows]
        plans = [
            f"   {mark:>{widths[1]}}  {said}"
            for number, answer in enumerate(self.answers, start=1)
            for mark, said in zip((number, ""), self._plans(answer), strict=False)
        ]
        notes = [*self._near(), *self._unknown(), *self._of_words()]
        return "\n".join([f"{self.subject}: {self.speed}", *lines, *notes, "plans", *plans])

    def _plans(self, answer: "Answer") -> list[str]:
        """Return a point's plan, or why there is none; then why none has the pins compared with."""
        own = answer.step.plan if answer.step else answer.why
        other = self._other(answer)
        why = other.why if answer.step and other else ""
        return [own, f"{','.join(self.compared)}: {why}"] if why else [own]

    def _unknown(self) -> list[str]:
        """Name the figures of parts that are missing, whose cells are empty."""
        figures = FIGURES.values() if self.tokens else ["price_per_hour"] * self._by_hardware
        lines = [
            f"{figure} of {answer.point.cluster.device.name} is not known; give it in --prices FILE"
            for answer in self.answers
            for figure in figures
            if answer.step and getattr(answer.part, figure) is None
        ]
        return list(dict.fromkeys(lines))

    def _of_words(self) -> list[str]:
        """Say which words of the command changed nothing, or lack another one beside them."""
        notes = [f"--cluster {spec}: given more than once, asked once" for spec in self.repeated]
        money = self.prices and not self._by_hardware or self.objective in FIGURES
        if money and self.tokens is None:
            notes.append("--tokens N, such as 1e12, adds the days, dollars and MWh of N tokens")
        return notes

    def _near(self) -> list[str]:
        """Name the rows that a longer search may put first: their bound is below the best row."""
        best = self.best
        if best is None or self.objective in ("memory", "hardware"):
            return []
        near = [
            str(number)
            for number, answer in enumerate(self.answers, start=1)
            if self._may_beat(answer, best)
        ]
        if not near:
            return []
        rows = "row" if len(near) == 1 else "rows"
        listed = ", ".join(near)
        return [f"{rows} {listed} may be the best: within the gap; --effort best narrows it"]

    def _may_beat(self, answer: "Answer", best: "Answer") -> bool:
        if answer is best or not answer.step:
            return False
        bound = answer.rank(self.objective)[0] / (1 + answer.step.gap)
        return bound < best.rank(self.objective)[0]

    def _other(self, answer: "Answer") -> "Answer | None":
        """Return the answer of the same point under other pins."""
        return next((other for other in self.others if other.point == answer.point), None)

    def _rows(self) -> list[dict[str, Any]]:
        return [self._row(answer, self._other(answer)) for answer in self.answers]

    def _row(self, answer: "Answer", other: "Answer | None") -> dict[str, Any]:
        step, point = answer.step, answer.point
        budget = answer.budget(self.tokens) if self.tokens else None
        return {
            "cluster": point.cluster.name,
            "devices": answer.devices,
            "seq_tokens": point.seq,
            "global_batch_rows": point.global_batch,
            "swept": dict(point.swept),
            "plan": step and step.plan,
            "why_not": answer.why or None,
            "step_time_s": step and step.step_us / 1e6,
            "gap": step and step.gap,
            "tokens_per_s": step and step.tokens_per_s,
            "mfu": step and step.mfu,
            "peak_bytes": step and step.peak_bytes,
            "needed_bytes": answer.need_bytes or None,
            "usable_bytes": answer.usable_bytes,
            "limit": step and step.limit,
            "shares": step and dict(step.shares),
            "dollars_per_hour": answer.price_per_hour,
            "days": budget and budget.days,
            "dollars": budget and budget.dollars,
            "energy_kwh": budget and budget.kwh,
            "compared_step_time_s": other and other.step and other.step.step_us / 1e6,
            "compared_why_not": (other and other.why) or None,
            "software_step_time_s": answer.software_us and answer.software_us / 1e6,
            "software_peak_bytes": answer.software_bytes,
        }

    def _head(self) -> list[str]:
        head = ["", "", "cluster", "seq", "rows", "ms a step", "tokens/s", "mfu", "peak / GiB"]
        head += ["gap"] * self.searched + [",".join(self.compared)] * bool(self.compared)
        head += [f"by {Path(self.software).stem}"] * bool(self.software)
        head += ["$/hour"] * self._by_hardware
        return head + ["days", "dollars", "MWh"] * (self.tokens is not None) + ["limited by"]

    @property
    def _after_software(self) -> int:
        """Return the columns between the other stack's and the last one."""
        return self._by_hardware + 3 * (self.tokens is not None)

    def _cells(self, answer: "Answer", other: "Answer | None", count: int) -> list[str]:
        step, point = answer.step, answer.point
        sizes = [point.cluster.name, f"{point.seq:,}", f"{point.global_batch:,}"]
        if step is None:
            cells = _without_plan(answer, sizes, count)
            if self.software:
                cells[-2 - self._after_software] = _by_software(answer)
            return cells
        memory = f"{_short(step.peak_bytes / _GIB)} / {_short(step.usable_bytes / _GIB)}"
        cells = [*sizes, f"{step.step_us / 1e3:,.1f}", f"{step.tokens_per_s:,.0f}"]
        cells += ["-" if step.mfu is None else f"{step.mfu:.1%}", memory]
        if self.searched:
            cells.append(f"{step.gap:.1%}")
        if self.compared:
            cells.append(_slower(answer, other))
        if self.software:
            cells.append(_by_software(answer))
        if self._by_hardware:
            cells.append(_short(answer.price_per_hour))
        if self.tokens:
            cells += _budget(answer, self.tokens)
        kind, share = step.shares[0]
        return [*cells, f"{kind} {share:.0%}"]


def _without_plan(answer: "Answer", sizes: list[str], count: int) -> list[str]:
    """Return the cells of a cluster that holds no plan: by how much its memory is too small, where
    that is why."""
    need, usable = answer.need_bytes / _GIB, answer.usable_bytes / _GIB
    cells = [*sizes, *["-"] * (count - len(sizes) - 1), "no layout: see plans"]
    if need > usable:
        cells[len(sizes) + 3] = f"{_short(need)} / {_short(usable)}"
        cells[-1] = f"does not fit: {_short(need - usable)} GiB too much"
    return cells


def _padded(text: str, width: int, head: str) -> str:
    return text.ljust(width) if head in ("cluster", "limited by") else text.rjust(width)


def _slower(answer: "Answer", other: "Answer | None") -> str:
    """Return how much slower the other pins are; "-" where nothing fits under them."""
    if answer.step is None or other is None or other.step is None:
        return "-"
    return f"{other.step.step_us / answer.step.step_us - 1:+.1%}"


def _by_software(answer: "Answer") -> str:
    """Return the step under the other stack, how much slower that is, and its peak."""
    if answer.software_us is None or answer.software_bytes is None:
        return "-"
    said = [f"{answer.software_us / 1e3:,.1f} ms"]
    if answer.step is not None:
        said.append(f"{answer.software_us / answer.step.step_us - 1:+.1%}")
    return ", ".join([*said, f"{_short(answer.software_bytes / _GIB)} GiB"])


def _budget(answer: "Answer", tokens: float) -> list[str]:
    """Return days, dollars and MWh."""
    found = answer.budget(tokens)
    assert found is not None, answer.why
    return [*map(_short, (found.days, found.dollars, found.kwh and found.kwh / 1e3))]


def _short(value: float | None) -> str:
    """Return a number with three digits at least, "-" where it is not known."""
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 10 else f"{value:,.{1 if value < 1000 else 0}f}"
