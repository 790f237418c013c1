"""What of a long step a picture shows: its first and last micro-batches, and marks that are wide
enough to be seen."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import floor, log10

# A step of more micro-batches is shown by its ends, each with as many and those that fill or empty
# the pipeline.
MOST_MICROBATCHES, AT_ENDS = 32, 6
# Marks of one colour that are narrower, and nearer to each other, become one; in pixels.
NARROW = 3.0
BREAK = 70.0  # between the two ends, in pixels


@dataclass(frozen=True)
class View:
    """A way from times of a step to pixels from `left` to `right`: up to head_us and from tail_us
    on, which are the same where all is shown."""

    step_us: float
    head_us: float
    tail_us: float
    left: float
    right: float

    @staticmethod
    def of(step_us: float, num_microbatches: int, num_ranks: int, ends: tuple) -> "View":
        """Return all of a step of few micro-batches. ends: pixels of its start and end."""
        shown = step_us * min(1.0, (AT_ENDS + num_ranks) / num_microbatches)
        if num_microbatches <= MOST_MICROBATCHES or 2 * shown > 0.9 * step_us:
            return View(step_us, step_us, step_us, *ends)
        return View(step_us, shown, step_us - shown, *ends)

    @property
    def left_out_us(self) -> float:
        return self.tail_us - self.head_us

    @property
    def break_left(self) -> float:
        """Return where what is left out begins, in pixels."""
        wide = self.right - self.left
        return self.left + ((wide - BREAK) / 2 if self.left_out_us else wide)

    def x(self, us: float) -> float:
        """Return the pixel of a time; of what is left out, where it begins."""
        head_wide = self.break_left - self.left
        if us <= self.head_us or not self.left_out_us:
            return self.left + head_wide * us / self.head_us
        if us < self.tail_us:
            return self.break_left
        return self.right - head_wide * (self.step_us - us) / self.head_us

    def spans(self, start_us: float, end_us: float) -> Iterator[tuple[float, float]]:
        """Yield the parts of a span that are shown, in us."""
        if start_us < self.head_us or not self.left_out_us:
            yield start_us, min(end_us, self.head_us)
        if self.left_out_us and end_us > self.tail_us:
            yield max(start_us, self.tail_us), end_us

    def ticks(self) -> list[float]:
        """Return the times of an axis that are shown, in us."""
        about = self.head_us / (3 if self.left_out_us else 6)
        tick = 10.0 ** floor(log10(about))
        tick *= max(n for n in (1, 2, 5) if n * tick <= about)
        every = (k * tick for k in range(int(self.step_us / tick) + 1))
        return [us for us in every if us <= self.head_us or us >= self.tail_us]


@dataclass(frozen=True)
class Mark:
    """A span of one stream in pixels. count: of the events in it."""

    left: float
    right: float
    colour: str
    said: str
    count: int = 1


def merged(marks: Iterable[Mark]) -> list[Mark]:
    """Return marks in order of time, with narrow neighbours of one colour as one."""
    found: list[Mark] = []
    for mark in sorted(marks, key=lambda m: m.left):
        last = found[-1] if found else None
        near = last is not None and mark.left - last.right < NARROW and mark.colour == last.colour
        if last is not None and near and mark.right - mark.left < NARROW:
            right, count = max(last.right, mark.right), last.count + mark.count
            found[-1] = replace(last, right=right, count=count)
        else:
            found.append(mark)
    return found
