"""A plan: decisions as text, and why they are so."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import one_class
from .files import write_text

if TYPE_CHECKING:
    from meshwright.ir.plan import Plan as Decisions
    from meshwright.planner.hardware.cluster import Cluster as Hardware
    from meshwright.planner.search.search import Found
    from meshwright.planner.simulate.predict import Prediction


def plotly_script() -> Path | None:
    """Return the file of Plotly's script; None where Plotly is not installed."""
    found = find_spec("plotly")
    places = found.submodule_search_locations if found else None
    path = Path(places[0]) / "package_data" / "plotly.min.js" if places else None
    return path if path and path.is_file() else None


@dataclass(frozen=True)
class Plan:
    """A plan that was made or read. decisions: all of it as data. report: what the search said of
    it, "" where none was made. found: what the search passed over, None where the plan was read.
    prediction: its simulated step. proof: what is said of the capture's proof."""

    decisions: "Decisions"
    report: str = ""
    found: "Found | None" = None
    prediction: "Prediction | None" = None
    proof: str = ""

    @staticmethod
    def load(path: str | Path) -> "Plan":
        """Read a plan's file. Raises MeshwrightError with the path where it is none."""
        return Plan(read_plan(path))

    def save(self, path: str | Path) -> None:
        """Write the plan's file; beside it what the search said, as `<path>.report.txt`, and as a
        page for a browser, `<path>.html`."""
        write_text(Path(path), self.text)
        if self.report:
            write_text(Path(f"{path}.report.txt"), self.report)
        if page := self.page:
            write_text(Path(f"{path}.html"), page)

    @property
    def page(self) -> str:
        """Return the report as one page for a browser; "" where the plan was not searched, or
        Plotly is not installed."""
        plotly = plotly_script()
        if self.found is None or self.prediction is None or plotly is None:
            return ""
        from meshwright.planner.page.page import page

        script = plotly.read_text(encoding="utf-8")
        return page(self.decisions, self.found, self.prediction, self.proof, script)

    @one_class
    def explain(self, *, value: str = "", segment: str = "") -> str:
        """Return why the plan is as it is, in text: all of it, or one value, or one segment."""
        from meshwright.planner.report.explain import explain_value, report
        from meshwright.planner.report.segments import explain_segment

        if value:
            return explain_value(self.decisions, value)
        if segment:
            return explain_segment(self.decisions, segment, self.hardware)
        return report(self.decisions)

    @property
    def summary(self) -> str:
        """Return the decisions and the predicted numbers in a few lines."""
        from meshwright.planner.report.explain import summary

        return summary(self.decisions)

    @property
    def text(self) -> str:
        """Return the plan as its file has it."""
        from meshwright.ir.text.plan_text import format_plan

        return format_plan(self.decisions)

    @property
    def hash(self) -> str:
        """Return the hash of the text, as programs and checkpoints name it."""
        from meshwright.ir.text.plan_text import plan_hash

        return plan_hash(self.decisions)

    @property
    def costs(self) -> dict[str, float]:
        """Return predicted numbers by name, units in the name."""
        return dict(self.decisions.costs)

    @property
    def hardware(self) -> "Hardware":
        """Return the cluster that the plan was made for, with its figures."""
        from meshwright.planner.hardware.cluster_file import cluster_of

        return cluster_of(self.decisions)


@one_class
def read_plan(path: str | Path) -> "Decisions":
    """Read a plan's file as data. Raises MeshwrightError with the path where it is none."""
    from meshwright.ir.errors import ParseError

    text = _text_of(Path(path))
    from meshwright.ir.text.plan_text import parse_plan

    try:
        return parse_plan(text)
    except ValueError as error:
        raise ParseError(f"{path}: {error}") from None


def _text_of(path: Path) -> str:
    from meshwright.ir.errors import ParseError

    if path.is_dir():
        known = path / "plan.txt"
        hint = f", such as {known}" if known.is_file() else ""
        raise ParseError(f"{path} is a folder; give a plan's file{hint}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(
            f"{path}: it is no plan: byte {error.start} is 0x{error.object[error.start]:02x}, no "
            "text; meshwright plan writes plans"
        ) from None
