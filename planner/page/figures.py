"""Figures of the page, as the dicts that Plotly draws: {"data": traces, "layout": layout}."""

from collections.abc import Iterable
from typing import Any

from meshwright.ir.graph import Op
from meshwright.ir.phases import forward_ops
from meshwright.ir.placement import format_placement
from meshwright.ir.plan import Piece, Plan

from ..report.shares import shares_of
from ..simulate.predict import Prediction
from ..simulate.simulator import Event
from ..simulate.stage_memory import usable_bytes
from ..simulate.timeline import memory_of, streams_of

Figure = dict[str, Any]
_GIB = 2.0**30
_MS = 1e3
# Of long steps the first and the last passes are drawn.
MOST_EVENTS, MOST_RANKS = 1500, 8
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
    rows = [(kind, share) for kind, share in found if share > 5e-4]
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": [kind for kind, _ in rows],
        "x": [share * prediction.step_us / _MS for _, share in rows],
        "text": [f"{share:.1%}" for _, share in rows],
    }
    return _figure([bar], "ms of a step", tall=60 + 40 * len(rows), yaxis={"autorange": "reversed"})


def segments(plan: Plan, prediction: Prediction) -> Figure:
    """Return the time of one micro-batch in each kind of segment, split by what is done."""
    works = {u.name: u.work for units in prediction.model.stages for u in units}
    by_piece = {p.name: [i for i in plan.instances if i.piece == p.name] for p in plan.pieces}
    names = [f"{name} x{len(uses)}" for name, uses in by_piece.items()]
    kinds: dict[str, list[float]] = {}
    for uses in by_piece.values():
        work = works[uses[0].name]
        phases = work.forward, work.backward
        times = {
            name: sum(getattr(phase, f"{name}_us") for phase in phases)
            for name in ("matmul", "attention", "pointwise", "collective")
        }
        again = min(work.again_us, times["pointwise"] + times["matmul"] + times["attention"])
        times["again"] = again
        for kind, us in times.items():
            kinds.setdefault(kind, []).append(us * len(uses) / _MS)
    words = {
        "matmul": "matmuls",
        "attention": "attention",
        "pointwise": "memory traffic",
        "collective": "links inside",
        "again": "of it recompute",
    }
    bars: list[Figure] = [
        {"type": "bar", "name": words[kind], "x": names, "y": values}
        for kind, values in kinds.items()
        if kind != "again" and any(values)
    ]
    if any(kinds["again"]):
        bars.append(
            {"type": "scatter", "mode": "markers", "name": words["again"], "x": names,
             "y": kinds["again"], "marker": {"symbol": "line-ew-open", "size": 26}}
        )  # fmt: skip
    return _figure(bars, "", "ms of a micro-batch, all uses", barmode="stack")


def timeline(plan: Plan, prediction: Prediction) -> Figure:
    """Return the step on each pp rank; of a long one its ends, side by side."""
    events = [e for e in streams_of(prediction).events if e.rank in _ranks(prediction)]
    step = prediction.step_us
    shown = step if len(events) <= MOST_EVENTS else step * MOST_EVENTS / len(events) / 2
    ends = [(0.0, shown), (step - shown, step)] if shown < step else [(0.0, step)]
    traces: list[Figure] = []
    for number, (first, last) in enumerate(ends, start=1):
        inside = [e for e in events if e.start_us <= last and e.end_us >= first]
        traces += _bars(inside, "x" if number == 1 else "x2", named=number == 1)
    rows = sorted({(e.rank, e.stream != "compute", _row(e)) for e in events})
    named = {"categoryorder": "array", "categoryarray": [name for *_, name in rows]}
    layout: Figure = {"barmode": "overlay", "yaxis": {"autorange": "reversed", **named}}
    for number, (first, last) in enumerate(ends, start=1):
        half = [0.0, 1.0] if len(ends) == 1 else [[0.0, 0.48], [0.52, 1.0]][number - 1]
        axis = {"range": [first / _MS, last / _MS], "domain": half, "title": {"text": "ms"}}
        layout["xaxis" if number == 1 else "xaxis2"] = axis
    return {"data": traces, "layout": {**layout, "height": 170 + 35 * len(rows)}}


def _bars(events: list[Event], axis: str, named: bool) -> list[Figure]:
    kinds: dict[str, list[Event]] = {}
    for event in events:
        compute = event.stream == "compute"
        kind = event.action.lstrip("0123456789")[0] if compute else event.stream
        kinds.setdefault(kind, []).append(event)
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": WORDS.get(kind, kind),
            "legendgroup": kind,
            "showlegend": named,
            "marker": {"color": _COLOURS.get(kind, "#8d8d8d")},
            "xaxis": axis,
            "y": [_row(e) for e in found],
            "base": [e.start_us / _MS for e in found],
            "x": [(e.end_us - e.start_us) / _MS for e in found],
            "hovertext": [e.action for e in found],
            "width": 0.8 if kind in "FBIW" else 0.3,
        }
        for kind, found in kinds.items()
    ]


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
    count = len(prediction.peaks)
    if count <= MOST_RANKS:
        return list(range(count))
    half = MOST_RANKS // 2
    return sorted({*range(half), *range(count - half + 1, count), prediction.peak_rank})


def memory(prediction: Prediction) -> Figure:
    """Return memory over the step by kind on each pp rank, chosen by a menu, against the budget."""
    traces: list[Figure] = []
    owners: list[int] = []
    for rank in _ranks(prediction):
        for trace in _stack(prediction, rank):
            traces.append({**trace, "visible": rank == prediction.peak_rank})
            owners.append(rank)
    budget = usable_bytes(prediction.cluster) / _GIB
    whole = prediction.cluster.device.memory_bytes / _GIB
    end = prediction.step_us / _MS
    for name, level in (("usable", budget), ("device", whole)):
        line = {"type": "scatter", "mode": "lines", "name": f"{name}, {level:.1f} GiB"}
        traces.append({**line, "x": [0, end], "y": [level, level], "line": {"dash": "dash"}})
    buttons = [
        {
            "label": f"rank {rank}",
            "method": "restyle",
            "args": [{"visible": [*(owner == rank for owner in owners), True, True]}],
        }
        for rank in _ranks(prediction)
    ]
    menu = {"buttons": buttons, "active": _ranks(prediction).index(prediction.peak_rank)}
    menu |= {"x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}
    found = _figure(traces, "ms", "GiB", tall=420)
    if len(buttons) > 1:
        found["layout"]["updatemenus"] = [menu]
    return found


def _stack(prediction: Prediction, rank: int) -> list[Figure]:
    found = memory_of(prediction, rank)
    samples = found.samples[:: max(1, len(found.samples) // 2000)]
    x = [s.start_us / _MS for s in samples] + [samples[-1].end_us / _MS]
    layers = [(kind, [size / _GIB] * len(x)) for kind, size in found.fixed]
    for kind, name in (("activations", "live_bytes"), ("temporaries", "passing_bytes")):
        sizes = [getattr(s, name) / _GIB for s in samples]
        layers.append((kind, [*sizes, sizes[-1]]))
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "memory",
            "line": {"shape": "hv", "width": 0.5},
            "name": kind,
            "x": x,
            "y": y,
        }
        for kind, y in layers
    ]


def placements(piece: Piece) -> Figure:
    """Return the forward graph of a piece: its values from top to bottom, by what they are cut."""
    ops = forward_ops(piece.graph)
    place = _layered(ops)
    edges_x: list[float | None] = []
    edges_y: list[float | None] = []
    for op in ops:
        for name in op.inputs:
            if name in place:
                (x0, y0), (x1, y1) = place[name], place[op.output.name]
                edges_x += [x0, x1, None]
                edges_y += [y0, y1, None]
    lines: Figure = {
        "type": "scatter",
        "mode": "lines",
        "x": edges_x,
        "y": edges_y,
        "hoverinfo": "skip",
    }
    lines |= {"line": {"width": 1, "color": "#9aa5b1"}, "showlegend": False}
    groups: dict[str, list[Op]] = {}
    for op in ops:
        groups.setdefault(format_placement(piece.placements[op.output.name]), []).append(op)
    nodes = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": placement,
            "x": [place[op.output.name][0] for op in found],
            "y": [place[op.output.name][1] for op in found],
            "text": [f"{op.output.name}<br>{op.target}<br>{op.source}" for op in found],
            "hoverinfo": "text",
            "marker": {"size": 13},
        }
        for placement, found in groups.items()
    ]
    tall = 120 + 26 * (1 + int(max((-y for _, y in place.values()), default=0)))
    bare = {"visible": False}
    return _figure([lines, *nodes], tall=tall, xaxis=bare, yaxis=bare)


def _layered(ops: Iterable[Op]) -> dict[str, tuple[float, float]]:
    """Return where each value is drawn: below all that it is made of, values of a row abreast."""
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


def levels(step_us: float, bound_us: float, floor_us: float | None) -> Figure:
    """Return the step beside the bound of the search and the floor of the hardware, in ms."""
    found = [("this plan", step_us), ("bound of the search", bound_us)]
    if floor_us is not None:
        found.append(("matmuls at the data sheet's peak", floor_us))
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": [name for name, _ in found],
        "x": [us / _MS for _, us in found],
        "text": [f"{us / _MS:,.1f} ms" for _, us in found],
    }
    return _figure([bar], "ms a step", tall=220, yaxis={"autorange": "reversed"})


def gains(rows: list[tuple[str, float]]) -> Figure:
    """Return by how much the step shortens with 10% more of each resource; rows: (name, share)."""
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": [name for name, _ in rows],
        "x": [100 * share for _, share in rows],
        "text": [f"{share:.2%}" for _, share in rows],
    }
    tall = 80 + 38 * len(rows)
    return _figure([bar], "% of the step saved", tall=tall, yaxis={"autorange": "reversed"})


def _figure(
    traces: list[Figure], xtitle: str = "", ytitle: str = "", tall: int = 360, **layout: Any
) -> Figure:
    found: Figure = {"height": tall, **layout}
    found["xaxis"] = {"title": {"text": xtitle}, **layout.get("xaxis", {})}
    found["yaxis"] = {"title": {"text": ytitle}, "automargin": True, **layout.get("yaxis", {})}
    return {"data": traces, "layout": found}
