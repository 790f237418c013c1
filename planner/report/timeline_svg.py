"""The timeline of a simulated step as SVG: every pp rank's streams, and its memory.

Each rank has a lane of compute, thin ones of collectives, transfers and, where a plan offloads,
copies, and a strip of memory up to what a device holds. A step of very many micro-batches is shown
by its ends (timeline_view.py). The SVG is written by hand: a browser opens it, and it scales.
"""

from collections.abc import Iterator
from html import escape

from meshwright.ir.plan import Plan

from ..hardware.usable import usable_bytes
from ..simulate.predict import Prediction
from ..simulate.simulator import Event
from ..simulate.timeline import UPDATE, RankMemory, memory_of, streams_of
from ..units import counted
from .timeline_view import BREAK, Mark, View, merged

WIDTH, LEFT, RIGHT, TOP = 1400, 110, 120, 64
LANE, THIN, STRIP, GAP = 22, 7, 40, 10
STREAMS, COPIES = ("collective", "transfer"), ("copy out", "copy back")
# Ranks beyond are left out, from the middle.
MOST_RANKS = 16
COLOURS = {
    "F": "#5b8ff9",
    "B": "#f6903d",
    "I": "#f6bd16",
    "W": "#9270ca",
    "STEP": "#c2a15a",
    "collective": "#269a99",
    "transfer": "#8d8d8d",
    "copy out": "#c06c9c",
    "copy back": "#e3a6c9",
    "fixed": "#c7d0dc",
    "activations": "#78d3a5",
    "temporaries": "#e8684a",
}
WORDS = {
    "F": "forward",
    "B": "backward",
    "I": "input gradients",
    "W": "weight gradients",
    "STEP": UPDATE,
    "collective": "gathers and reductions",
    "transfer": "sends",
    "copy out": "to the host",
    "copy back": "from the host",
    "fixed": "parameters, gradients, optimizer, buffers",
    "activations": "activations",
    "temporaries": "temporaries",
}


def timeline_svg(plan: Plan, prediction: Prediction) -> str:
    """Return streams and memory of every pp rank over one step, as SVG text."""
    ranks = _shown(len(prediction.peaks))
    events = streams_of(prediction).events
    copies = any(e.stream in COPIES for e in events)
    thin = STREAMS + COPIES if copies else STREAMS
    tall = LANE + len(thin) * THIN + STRIP + GAP
    height = TOP + len(ranks) * tall + 30
    sizes = plan.num_microbatches, len(prediction.peaks)
    view = View.of(prediction.step_us, *sizes, (LEFT, WIDTH - RIGHT))
    body = [*_head(plan, prediction, copies), *_axis(view, height - 22)]
    updated = Event(-1, UPDATE, max(e.end_us for e in events), prediction.step_us)
    for row, rank in enumerate(ranks):
        mine = [e for e in events if e.rank == rank] + [updated]
        body += _rank(prediction, view, rank, mine, TOP + row * tall, thin)
    body += _break(view, height - 22)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _shown(count: int) -> list[int]:
    if count <= MOST_RANKS:
        return list(range(count))
    half = MOST_RANKS // 2
    return [*range(half), *range(count - half, count)]


def _head(plan: Plan, prediction: Prediction, copies: bool) -> Iterator[str]:
    sizes = " ".join(f"{name}={size}" for name, size in plan.mesh.axes)
    batches = counted(plan.num_microbatches, "micro-batch")
    title = (
        f"{plan.model}: {sizes}, {plan.schedule_name}, {batches}; "
        f"step {prediction.step_us / 1e3:,.1f} ms, peak {prediction.peak_bytes / 2**30:.1f} GiB"
    )
    yield _text(LEFT, 18, title, size=14)
    kinds = {_kind(e) for e in prediction.timeline.events}
    x = float(LEFT)
    for key in COLOURS:
        if (len(key) == 1 and key not in kinds) or (key in COPIES and not copies):
            continue
        yield _box(x, 30, 10, 10, COLOURS[key], "")
        yield _text(x + 14, 39, WORDS[key])
        x += 30 + 6.2 * len(WORDS[key])


def _axis(view: View, y: float) -> Iterator[str]:
    unit, name = (1e6, "s") if view.head_us >= 1e7 else (1e3, "ms")
    for us in view.ticks():
        x = view.x(us)
        yield f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>'
        yield _text(x, y + 14, f"{us / unit:,.6g} {name}", anchor="middle")


def _break(view: View, y: float) -> Iterator[str]:
    """What of the step is left out."""
    if view.left_out_us:
        yield _box(view.break_left, TOP - 6, BREAK, y - TOP + 6, "#f4f4f4", "")
        middle = view.break_left + BREAK / 2
        for line, text in enumerate(
            ("\u2026", f"{view.left_out_us / 1e6:,.3g} s", "alike", "left out")
        ):
            yield _text(middle, TOP + 14 * (line + 1), text, anchor="middle")


def _kind(event: Event) -> str:
    """The kind of a compute action, by its letter."""
    return event.action.lstrip("0123456789")[0]


def _rank(
    prediction: Prediction,
    view: View,
    rank: int,
    events: list[Event],
    y: float,
    thin: tuple[str, ...],
) -> Iterator[str]:
    yield _text(LEFT - 8, y + 15, f"rank {rank}", anchor="end")
    tops = {stream: (y + LANE + k * THIN, THIN) for k, stream in enumerate(thin)}
    tops["compute"] = (y, LANE)
    for stream, (top, tall) in tops.items():
        marks = (m for e in events if e.stream == stream for m in _marks(view, e))
        for mark in marks if stream == "compute" else merged(marks):
            more = f" and {mark.count - 1} more" if mark.count > 1 else ""
            wide = mark.right - mark.left
            yield _box(mark.left, top, wide, tall - 1, mark.colour, mark.said + more)
            action = mark.said.partition(":")[0]
            if stream == "compute" and wide > 7 * len(action):
                middle = (mark.left + mark.right) / 2
                yield _text(middle, y + 15, action, anchor="middle", fill="white")
    yield from _memory(prediction, view, memory_of(prediction, rank), y + LANE + len(thin) * THIN)


def _marks(view: View, event: Event) -> Iterator[Mark]:
    said = f"{event.action}: {event.start_us / 1e3:,.2f} to {event.end_us / 1e3:,.2f} ms"
    colour = event.stream if event.stream != "compute" else _kind(event)
    colour = "STEP" if event.rank < 0 else colour
    for start, end in view.spans(event.start_us, event.end_us):
        yield Mark(view.x(start), view.x(end), COLOURS[colour], said)


def _memory(prediction: Prediction, view: View, memory: RankMemory, y: float) -> Iterator[str]:
    """Stacked from the bottom; the line is what a plan may use."""
    device, usable = prediction.cluster.device.memory_bytes, usable_bytes(prediction.cluster)
    tall = STRIP - 4

    def level(size: float) -> float:
        return y + tall * (1 - size / device)

    fixed = memory.fixed_bytes
    held = ", ".join(f"{kind} {size / 2**30:.2f} GiB" for kind, size in memory.fixed)
    left, right = view.x(0.0), view.x(view.step_us)
    samples = memory.samples
    for kind, sizes in (
        ("temporaries", [s.live_bytes + s.passing_bytes for s in samples]),
        ("activations", [s.live_bytes for s in samples]),
    ):
        steps = [
            (view.x(start), view.x(end), level(fixed + size))
            for s, size in zip(samples, sizes, strict=True)
            for start, end in view.spans(s.start_us, s.end_us)
        ]
        yield _area(steps, y + tall, COLOURS[kind], f"{kind}, up to {_gib(max(sizes))} in all")
    yield _box(left, level(fixed), right - left, y + tall - level(fixed), COLOURS["fixed"], held)
    limit = level(usable)
    yield (
        f'<line x1="{left:.1f}" y1="{limit:.1f}" x2="{right:.1f}" y2="{limit:.1f}" '
        'stroke="#c23531" stroke-dasharray="4 3"/>'
    )
    yield _text(right + 6, limit + 4, f"usable {_gib(usable)}", fill="#c23531")
    yield _text(LEFT - 8, y + tall, f"peak {_gib(memory.peak_bytes)}", anchor="end")


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"


def _area(steps: list[tuple[float, float, float]], bottom: float, colour: str, said: str) -> str:
    """What lies below steps, each (left, right, top); a gap between two of them stays empty."""
    path, at = "", None
    for left, right, top in steps:
        if at is None or left - at > 0.1:
            path += f"V{bottom:.1f}Z" if path else ""
            path += f"M{left:.1f} {bottom:.1f}"
        path += f"V{top:.1f}H{right:.1f}"
        at = right
    return f'<path d="{path}V{bottom:.1f}Z" fill="{colour}"><title>{escape(said)}</title></path>'


def _px(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _box(x: float, y: float, wide: float, tall: float, colour: str, said: str) -> str:
    inner = f"<title>{escape(said)}</title>" if said else ""
    return (
        f'<rect x="{_px(x)}" y="{_px(y)}" width="{_px(max(wide, 0.3))}" '
        f'height="{_px(max(tall, 0.0))}" '
        f'fill="{colour}">{inner}</rect>'
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", fill: str = "#222", size: int = 11
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
