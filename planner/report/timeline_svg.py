"""The timeline of a simulated step as SVG: every pp rank's streams, and its memory.

Each rank has a lane of compute, thin ones of collectives, transfers and, where a plan offloads,
copies, and a strip of memory up to what a device holds. The SVG is written by hand: a browser opens
it, and it scales.
"""

from collections.abc import Iterator
from html import escape
from math import floor, log10

from meshwright.ir.plan import Plan

from ..simulate.predict import Prediction
from ..simulate.simulator import Event
from ..simulate.stage_memory import usable_bytes
from ..simulate.timeline import RankMemory, memory_of, streams_of

WIDTH, LEFT, TOP = 1400, 90, 64
LANE, THIN, STRIP, GAP = 22, 7, 40, 10
STREAMS, COPIES = ("collective", "transfer"), ("copy out", "copy back")
# Ranks beyond are left out, from the middle.
MOST_RANKS = 24
COLOURS = {
    "F": "#5b8ff9",
    "B": "#f6903d",
    "I": "#f6bd16",
    "W": "#9270ca",
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
    body = [*_head(plan, prediction, copies), *_axis(prediction.step_us, height - 22)]
    for row, rank in enumerate(ranks):
        mine = [e for e in events if e.rank == rank]
        body += _rank(prediction, rank, mine, TOP + row * tall, thin)
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
    title = (
        f"{plan.model}: {sizes}, {plan.schedule_name}, {plan.num_microbatches} micro-batches; "
        f"step {prediction.step_us / 1e3:,.1f} ms, peak {prediction.peak_bytes / 2**30:.1f} GiB"
    )
    yield _text(LEFT, 18, title, size=14)
    kinds = {e.action.lstrip("0123456789")[0] for e in prediction.timeline.events}
    x = float(LEFT)
    for key in COLOURS:
        if (len(key) == 1 and key not in kinds) or (key in COPIES and not copies):
            continue
        yield _box(x, 30, 10, 10, COLOURS[key], "")
        yield _text(x + 14, 39, WORDS[key])
        x += 30 + 6.2 * len(WORDS[key])


def _axis(step_us: float, y: float) -> Iterator[str]:
    tick = 10.0 ** floor(log10(step_us / 5))
    tick *= max(n for n in (1, 2, 5) if n * tick <= step_us / 5)
    for k in range(int(step_us / tick) + 1):
        x, ms = _x(k * tick, step_us), k * tick / 1e3
        yield f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>'
        yield _text(x, y + 14, f"{ms:,.4g} ms", anchor="middle")


def _x(us: float, step_us: float) -> float:
    return LEFT + (WIDTH - LEFT - 30) * us / step_us


def _rank(
    prediction: Prediction, rank: int, events: list[Event], y: float, thin: tuple[str, ...]
) -> Iterator[str]:
    step_us = prediction.step_us
    yield _text(LEFT - 8, y + 15, f"rank {rank}", anchor="end")
    tops = {stream: (y + LANE + k * THIN, THIN) for k, stream in enumerate(thin)}
    tops["compute"] = (y, LANE)
    for event in events:
        top, tall = tops[event.stream]
        left, right = _x(event.start_us, step_us), _x(event.end_us, step_us)
        kind = event.action.lstrip("0123456789")[0]
        colour = COLOURS[kind if event.stream == "compute" else event.stream]
        said = f"{event.action}: {event.start_us / 1e3:,.2f} to {event.end_us / 1e3:,.2f} ms"
        yield _box(left, top, right - left, tall - 1, colour, said)
        if event.stream == "compute" and right - left > 8 * len(event.action):
            yield _text((left + right) / 2, y + 15, event.action, anchor="middle", fill="white")
    yield from _memory(prediction, memory_of(prediction, rank), y + LANE + len(thin) * THIN)


def _memory(prediction: Prediction, memory: RankMemory, y: float) -> Iterator[str]:
    """Stacked from the bottom; the line is what a plan may use."""
    device, step_us = prediction.cluster.device.memory_bytes, prediction.step_us
    tall = STRIP - 4

    def level(size: float) -> float:
        return y + tall * (1 - size / device)

    fixed = memory.fixed_bytes
    held = ", ".join(f"{kind} {size / 2**30:.2f} GiB" for kind, size in memory.fixed)
    left, right = _x(0, step_us), _x(step_us, step_us)
    yield _box(left, level(fixed), right - left, y + tall - level(fixed), COLOURS["fixed"], held)
    for s in memory.samples:
        x, wide = _x(s.start_us, step_us), _x(s.end_us, step_us) - _x(s.start_us, step_us)
        live = fixed + s.live_bytes
        said = f"activations {s.live_bytes / 2**30:.2f} GiB"
        yield _box(x, level(live), wide, level(fixed) - level(live), COLOURS["activations"], said)
        said = f"temporaries {s.passing_bytes / 2**30:.2f} GiB"
        top = level(live + s.passing_bytes)
        yield _box(x, top, wide, level(live) - top, COLOURS["temporaries"], said)
    limit = level(usable_bytes(prediction.cluster))
    yield (
        f'<line x1="{left:.1f}" y1="{limit:.1f}" x2="{right:.1f}" y2="{limit:.1f}" '
        'stroke="#c23531" stroke-dasharray="4 3"/>'
    )
    yield _text(LEFT - 8, y + tall, f"{memory.peak_bytes / 2**30:.1f} GiB", anchor="end")


def _box(x: float, y: float, wide: float, tall: float, colour: str, said: str) -> str:
    inner = f"<title>{escape(said)}</title>" if said else ""
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(wide, 0.3):.2f}" height="{max(tall, 0.0):.2f}" '
        f'fill="{colour}">{inner}</rect>'
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", fill: str = "#222", size: int = 11
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
