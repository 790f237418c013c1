"""Figures of the page, as the dicts that Plotly draws: {"data": traces, "layout": layout}."""

from collections.abc import Callable, Iterable
from typing import Any

from meshwright.ir.graph import Op
from meshwright.ir.phases import forward_ops
from meshwright.ir.placement import format_placement
from meshwright.ir.plan import Piece, Plan

from ..cost.piece_cost import PieceWork
from ..hardware.usable import usable_bytes
from ..report.shares import shares_of
from ..simulate.predict import Prediction
from ..simulate.simulator import Event
from ..simulate.timeline import Sample, memory_of, streams_of

Figure = dict[str, Any]
Places = dict[str, tuple[float, float]]
_GIB = 2.0**30
_MS = 1e3
# Of long steps the first and the last passes are drawn.
MOST_EVENTS, MOST_RANKS, MOST_SAMPLES = 1500, 8, 1000
LEAST_SHARE = 5e-4  # of a step, that has a bar
_DOWNWARDS = {"autorange": "reversed"}
_BARE = {"visible": False}
_DASHES = {
    "type": "scatter",
    "mode": "markers",
    "marker": {"symbol": "line-ew-open", "size": 26},
}
_AREA = {
    "type": "scatter",
    "mode": "lines",
    "stackgroup": "memory",
    "line": {"shape": "hv", "width": 0.5},
}
_PARTS = {1: [[0.0, 1.0]], 2: [[0.0, 0.48], [0.52, 1.0]]}  # of the width, by what is side by side
_MENU = {"x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
# Of work in a segment, by the name of its field.
_KINDS = {
    "matmul": "matmuls",
    "attention": "attention",
    "pointwise": "memory traffic",
    "collective": "links inside",
}
WORDS = {
    "F": "forward",
    "B": "backward",
    "I": "gradients of inputs",
    "W": "gradients of weights",
    "collective": "collectives",
    "transfer": "sends",
    "copy out": "copies to the host",
    "copy back": "copies from the host",
}


def shares(plan: Plan, prediction: Prediction) -> Figure:
    """Return the step's time by what it is spent on, in ms, as the mean over ranks."""
    found = shares_of(prediction.model, prediction.timeline, prediction.cluster, plan.mesh)
    rows = {kind: share for kind, share in found if share > LEAST_SHARE}
    bars = _across(rows, prediction.step_us / _MS, "{:.1%}".format)
    return _figure([bars], "ms of a step", tall=60 + 40 * len(rows), yaxis=_DOWNWARDS)


def levels(step_us: float, bound_us: float, floor_us: float | None) -> Figure:
    """Return the step beside the bound of the search and the floor of the hardware, in ms."""
    floor = {} if floor_us is None else {"matmuls at the data sheet's peak": floor_us}
    rows = {"this plan": step_us, "bound of the search": bound_us, **floor}
    bars = _across(rows, 1 / _MS, lambda us: f"{us / _MS:,.1f} ms")
    return _figure([bars], "ms a step", tall=220, yaxis=_DOWNWARDS)


def gains(rows: list[tuple[str, float]]) -> Figure:
    """Return by how much the step shortens with 10% more of each resource; rows: (name, share)."""
    bars = _across(dict(rows), 100.0, "{:.2%}".format)
    return _figure([bars], "% of the step saved", tall=80 + 38 * len(rows), yaxis=_DOWNWARDS)


def _across(rows: dict[str, float], scale: float, said: Callable[[float], str]) -> Figure:
    """Return horizontal bars, the first one on top. said: what stands at a bar's end."""
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(rows),
        "x": [scale * value for value in rows.values()],
        "text": [said(value) for value in rows.values()],
    }


def segments(plan: Plan, prediction: Prediction) -> Figure:
    """Return the time of one micro-batch in each kind of segment, split by what is done."""
    works = {u.name: u.work for units in prediction.model.stages for u in units}
    uses = {p.name: [i.name for i in plan.instances if i.piece == p.name] for p in plan.pieces}
    x = [f"{name} x{len(found)}" for name, found in uses.items()]
    each = [(works[found[0]], len(found)) for found in uses.values()]
    bars: list[Figure] = [
        {"type": "bar", "name": said, "x": x, "y": [_spent(*one, kind) for one in each]}
        for kind, said in _KINDS.items()
    ]
    again = [count * work.again_us / _MS for work, count in each]
    bars.append({**_DASHES, "name": "of it recompute", "x": x, "y": again})
    shown = [bar for bar in bars if any(bar["y"])]
    return _figure(shown, "", "ms of a micro-batch, all uses", barmode="stack")


def _spent(work: PieceWork, count: int, kind: str) -> float:
    """Return ms of some uses of a segment in one kind of work, forward and backward."""
    both = work.forward, work.backward
    return count * sum(getattr(phase, f"{kind}_us") for phase in both) / _MS


def timeline(plan: Plan, prediction: Prediction) -> Figure:
    """Return the step on each pp rank; of a long one its ends, side by side."""
    ranks = _ranks(prediction)
    events = [e for e in streams_of(prediction).events if e.rank in ranks]
    ends = _ends(prediction.step_us, len(events))
    traces: list[Figure] = []
    for number, (first, last) in enumerate(ends):
        inside = [e for e in events if e.start_us <= last and e.end_us >= first]
        traces += _bars(inside, ("x", "x2")[number], named=number == 0)
    return {"data": traces, "layout": {**_rows(events), **_axes(ends)}}


def _ends(step_us: float, num_events: int) -> list[tuple[float, float]]:
    """Return what is drawn of a step, in us: all of a short one."""
    shown = step_us * MOST_EVENTS / num_events / 2
    whole = 2 * shown >= step_us
    return [(0.0, step_us)] if whole else [(0.0, shown), (step_us - shown, step_us)]


def _rows(events: list[Event]) -> Figure:
    """Return a row of each rank, and one below it of its links."""
    rows = sorted({(e.rank, e.stream != "compute", _row(e)) for e in events})
    order = {"categoryorder": "array", "categoryarray": [name for *_, name in rows]}
    return {
        "barmode": "overlay",
        "yaxis": {**_DOWNWARDS, **order},
        "height": 170 + 35 * len(rows),
    }


def _axes(ends: list[tuple[float, float]]) -> Figure:
    """Return the x axis of each end of a step, side by side."""
    return {
        name: {"range": [us / _MS for us in end], "domain": half, "title": {"text": "ms"}}
        for name, end, half in zip(("xaxis", "xaxis2"), ends, _PARTS[len(ends)], strict=False)
    }


def _bars(events: list[Event], axis: str, named: bool) -> list[Figure]:
    kinds: dict[str, list[Event]] = {}
    for event in events:
        kinds.setdefault(_kind(event), []).append(event)
    more = {"xaxis": axis, "showlegend": named}
    return [_spans(kind, found) | more for kind, found in kinds.items()]


def _kind(event: Event) -> str:
    compute = event.stream == "compute"
    return event.action.lstrip("0123456789")[0] if compute else event.stream


def _spans(kind: str, events: list[Event]) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": WORDS.get(kind, kind),
        "legendgroup": kind,
        "marker": {"color": _COLOURS.get(kind, "#8d8d8d")},
        "y": [_row(e) for e in events],
        "base": [e.start_us / _MS for e in events],
        "x": [(e.end_us - e.start_us) / _MS for e in events],
        "hovertext": [e.action for e in events],
        "width": 0.8 if kind in "FBIW" else 0.3,
    }


_COLOURS = {
    "F": "#5b8ff9",
    "B": "#f6903d",
    "I": "#f6bd16",
    "W": "#9270ca",
    "collective": "#269a99",
    "copy out": "#c06c9c",
    "copy back": "#e3a6c9",
}


def _row(event: Event) -> str:
    return f"rank {event.rank}" + ("" if event.stream == "compute" else " links")


def _ranks(prediction: Prediction) -> list[int]:
    """Return the pp ranks to draw: all of a few, else the ends and the fullest."""
    if (count := len(prediction.peaks)) <= MOST_RANKS:
        return list(range(count))
    half = MOST_RANKS // 2
    return sorted({*range(half), *range(count - half + 1, count), prediction.peak_rank})


def memory(prediction: Prediction) -> Figure:
    """Return memory over the step by kind on each pp rank, chosen by a menu, against the budget."""
    stacks = {rank: _stack(prediction, rank) for rank in _ranks(prediction)}
    traces = [
        {**trace, "visible": rank == prediction.peak_rank}
        for rank, stack in stacks.items()
        for trace in stack
    ]
    found = _figure([*traces, *_limits(prediction)], "ms", "GiB", tall=420)
    if len(stacks) > 1:
        active = list(stacks).index(prediction.peak_rank)
        found["layout"]["updatemenus"] = [{**_MENU, "buttons": _buttons(stacks), "active": active}]
    return found


def _limits(prediction: Prediction) -> list[Figure]:
    """Return a line at what a plan may use, and one at what the device has."""
    device = prediction.cluster.device.memory_bytes
    known = {"usable": usable_bytes(prediction.cluster), "device": device}
    line = {"type": "scatter", "mode": "lines", "line": {"dash": "dash"}}
    end = prediction.step_us / _MS
    return [
        {**line, "name": f"{name}, {size / _GIB:.1f} GiB", "x": [0, end], "y": [size / _GIB] * 2}
        for name, size in known.items()
    ]


def _buttons(stacks: dict[int, list[Figure]]) -> list[Figure]:
    """Return a button of each rank, which shows its stack and the limits."""
    owners = [rank for rank, stack in stacks.items() for _ in stack]
    return [
        {
            "label": f"rank {rank}",
            "method": "restyle",
            "args": [{"visible": [*(owner == rank for owner in owners), True, True]}],
        }
        for rank in stacks
    ]


def _stack(prediction: Prediction, rank: int) -> list[Figure]:
    """Return the areas of a rank's memory, what it holds throughout below the rest."""
    found = memory_of(prediction, rank)
    samples = _fewer(found.samples)
    x = [s.start_us / _MS for s in samples] + [samples[-1].end_us / _MS]
    layers = {kind: [size / _GIB] * len(x) for kind, size in found.fixed}
    layers["activations"] = _levels([s.live_bytes for s in samples])
    layers["temporaries"] = _levels([s.passing_bytes for s in samples])
    return [{**_AREA, "name": kind, "x": x, "y": y} for kind, y in layers.items()]


def _fewer(samples: tuple[Sample, ...]) -> list[Sample]:
    """Return at most MOST_SAMPLES; of some together the one with the most bytes."""
    some = -(-len(samples) // MOST_SAMPLES)
    groups = (samples[k : k + some] for k in range(0, len(samples), some))
    return [max(group, key=lambda s: s.live_bytes + s.passing_bytes) for group in groups]


def _levels(sizes: list[float]) -> list[float]:
    return [size / _GIB for size in (*sizes, sizes[-1])]


def placements(piece: Piece) -> Figure:
    """Return the forward graph of a piece: its values from top to bottom, by what they are cut."""
    ops = forward_ops(piece.graph)
    place = _layered(ops)
    nodes = [_nodes(name, found, place) for name, found in _by_placement(piece, ops).items()]
    tall = 146 + 26 * max((int(-y) for _, y in place.values()), default=0)
    return _figure([_edges(ops, place), *nodes], tall=tall, xaxis=_BARE, yaxis=_BARE)


def _by_placement(piece: Piece, ops: Iterable[Op]) -> dict[str, list[Op]]:
    groups: dict[str, list[Op]] = {}
    for op in ops:
        groups.setdefault(format_placement(piece.placements[op.output.name]), []).append(op)
    return groups


def _edges(ops: Iterable[Op], place: Places) -> Figure:
    """Return one line from each value to each that is made of it."""
    x: list[float | None] = []
    y: list[float | None] = []
    for op in ops:
        for name in filter(place.__contains__, op.inputs):
            (x0, y0), (x1, y1) = place[name], place[op.output.name]
            x += [x0, x1, None]
            y += [y0, y1, None]
    thin = {"width": 1, "color": "#9aa5b1"}
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False}
    return {**line, "line": thin, "x": x, "y": y}


def _nodes(name: str, ops: list[Op], place: Places) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [place[op.output.name][0] for op in ops],
        "y": [place[op.output.name][1] for op in ops],
        "text": [f"{op.output.name}<br>{op.target}<br>{op.source}" for op in ops],
        "hoverinfo": "text",
        "marker": {"size": 13},
    }


def _layered(ops: Iterable[Op]) -> Places:
    """Return (x, y) of each value: below all that it is made of, values of a row abreast."""
    depth: dict[str, int] = {}
    rows: dict[int, list[str]] = {}
    for op in ops:
        level = 1 + max((depth[name] for name in op.inputs if name in depth), default=-1)
        for value in op.outputs:
            depth[value.name] = level
        rows.setdefault(level, []).append(op.output.name)
    return {
        name: (k - (len(row) - 1) / 2, float(-level))
        for level, row in rows.items()
        for k, name in enumerate(row)
    }


def _figure(
    traces: list[Figure], xtitle: str = "", ytitle: str = "", tall: int = 360, **layout: Any
) -> Figure:
    x = {"title": {"text": xtitle}, **layout.pop("xaxis", {})}
    y = {"title": {"text": ytitle}, **layout.pop("yaxis", {})}
    return {"data": traces, "layout": {**layout, "height": tall, "xaxis": x, "yaxis": y}}
