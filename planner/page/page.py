"""One self-contained page: no network, light and dark, for phones and desks."""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from meshwright.ir.plan import Plan
from meshwright.ir.text.plan_text import plan_hash

from ..hardware.usable import usable_bytes
from ..report.coverage import coverage
from ..report.report import runners_up, told_gap
from ..search.search import Found
from ..simulate.predict import Prediction
from ..units import gib
from ..what_if.prices import read_prices
from . import figures, words

_TEMPLATE = Path(__file__).with_name("template.html")


class _Page(Template):
    delimiter = "@@"


@dataclass(frozen=True)
class Section:
    """A part of the page. name: in links. body: HTML; figure: what Plotly draws below it."""

    name: str
    title: str
    body: str
    figure: figures.Figure | None = None

    @property
    def html(self) -> str:
        """Return the section, with an empty place for its figure."""
        place = f'<div id="figure-{self.name}"></div>' if self.figure else ""
        wide = f'<div class="wide" tabindex="0">{place}</div>' if place else ""
        return f'<section id="{self.name}"><h2>{self.title}</h2>{self.body}{wide}</section>'


def page(plan: Plan, found: Found, prediction: Prediction, proof: str, plotly: str) -> str:
    """Return the page of a searched plan. proof: what is said of the capture's. plotly: the text of
    Plotly's script, which is put into the page."""
    parts = list(_sections(plan, found, prediction, proof))
    drawn = {f"figure-{part.name}": part.figure for part in parts if part.figure}
    return _Page(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html.escape(f"{plan.model} on {plan.cluster}"),
        links="".join(f'<a href="#{part.name}">{part.title}</a>' for part in parts),
        sections="\n".join(part.html for part in parts),
        figures=json.dumps(drawn).replace("</", "<\\/"),
        plotly=plotly,
    )


def _sections(plan: Plan, found: Found, prediction: Prediction, proof: str) -> Sequence[Section]:
    largest = max(plan.pieces, key=lambda p: (_uses(plan, p.name), len(p.graph.ops)))
    gains = words.gains(plan, prediction)
    return (
        Section("decision", "What was decided", _lead(plan, found, prediction)),
        Section(
            "step",
            "What the step is spent on",
            "<p>The mean over the ranks of the pipeline. Links count where nothing hides them.</p>",
            figures.shares(plan, prediction),
        ),
        Section(
            "segments",
            "Time by segment",
            "<p>Forward and backward of one micro-batch on one rank, all uses of a segment.</p>",
            figures.segments(plan, prediction),
        ),
        Section(
            "timeline",
            "The step over time",
            "<p>Compute of each pipeline rank, and its links below it. Drag to look closer.</p>",
            figures.timeline(plan, prediction),
        ),
        Section(
            "memory",
            "Memory over time",
            "<p>Of one device of a rank, by kind, against what a plan may use.</p>",
            figures.memory(prediction),
        ),
        Section(
            "placements",
            f"Placements: {html.escape(largest.name)}",
            f"<p>The forward of a segment that is used {_uses(plan, largest.name)} times, from top "
            "to bottom. A colour is a placement: for each dim of the value, the axes that cut it."
            "</p>",
            figures.placements(largest),
        ),
        Section("others", "Runners-up", _losers(found)),
        Section("bound", "How far from the best", _bound(found), _levels(plan, found, prediction)),
        Section(
            "gains",
            "What 10% more of each resource would buy",
            _gains(gains) + _more_memory(found, prediction),
            _drawn(gains),
        ),
        Section("basis", "What the numbers rest on", _basis(plan, prediction, proof)),
    )


def _uses(plan: Plan, piece: str) -> int:
    return sum(i.piece == piece for i in plan.instances)


def _lead(plan: Plan, found: Found, prediction: Prediction) -> str:
    said = html.escape(words.decision(plan, found, prediction))
    return f'<p class="lead">{said}</p><p>plan {plan_hash(plan)}, effort {found.budget.effort}</p>'


def _losers(found: Found) -> str:
    rows = [(str(loser.candidate), loser.reason(found.best)) for loser in runners_up(found)]
    if not rows:
        return "<p>None: the pins leave one combination.</p>"
    return _table(("combination", "why it lost, or was passed over"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="wide" tabindex="0"><table>{line(head, "th")}{body}</table></div>'


def _bound(found: Found) -> str:
    return (
        f"<p>No combination of its placements takes less than {found.bound_us / 1e3:,.1f} ms: a "
        f"gap of {found.gap:.2%}. {found.num_candidates} combinations, {found.num_simulated} "
        f"simulated, {found.num_unfit} do not fit. {html.escape(told_gap(found))}</p>"
    )


def _levels(plan: Plan, found: Found, prediction: Prediction) -> figures.Figure:
    """The floor is the model's flops at the data sheet's dense bf16 peak, where that is known."""
    peak = read_prices().of(prediction.cluster.device.name).peak_flops_per_s
    flops = plan.flops_per_token * plan.global_batch * plan.seq
    floor = None if peak is None else flops / peak / prediction.cluster.num_devices * 1e6
    return figures.levels(prediction.step_us, found.bound_us, floor)


def _gains(gains: list[tuple[str, float]]) -> str:
    if not gains:
        return "<p>Nothing was priced.</p>"
    name, share = gains[0]
    return (
        f"<p>The plan as it stands: 10% more of {html.escape(name)} saves {share:.1%} of the step. "
        "A search anew, with <code>meshwright what-if</code>, may save more.</p>"
    )


def _more_memory(found: Found, prediction: Prediction) -> str:
    """More memory leaves the plan as it is: only a search anew tells what it buys."""
    free = gib(usable_bytes(prediction.cluster) - prediction.peak_bytes)
    unfit = found.num_unfit
    kept_out = f"kept {unfit} combinations out" if unfit else "kept no combination out"
    return (
        f"<p>More memory changes nothing in this plan, which leaves {free} a device free. It "
        f"{kept_out} and may have cost recomputation: what more of it buys is a search, "
        f"<code>meshwright what-if ... --sweep device.memory_gb={words.MORE}</code>.</p>"
    )


def _drawn(gains: list[tuple[str, float]]) -> figures.Figure | None:
    return figures.gains(gains) if gains else None


def _basis(plan: Plan, prediction: Prediction, proof: str) -> str:
    lines = [proof, *(line.strip() for line in coverage(plan, prediction.cluster))]
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines if line)
    title = "Measured, assumed, from data sheets"
    return f"<details open><summary>{title}</summary><ul>{items}</ul></details>"
