"""The page of a plan: its figures say what was predicted, and a browser draws them offline."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import meshwright
from meshwright.api import plans
from meshwright.api.plans import plotly_script
from meshwright.planner.hardware.cluster_file import format_cluster, parse_cluster
from meshwright.planner.page import figures, words
from meshwright.planner.simulate.predict import Prediction

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write pages, as outside of tests."""
    monkeypatch.setattr(plans, "plotly_script", plotly_script)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> meshwright.Plan:
    """Of a cluster that has no name in the catalogue."""
    path = tmp_path_factory.mktemp("cluster") / "mine.toml"
    path.write_text(format_cluster(replace(parse_cluster("h200:4"), name="mine")))
    job = meshwright.Job(seq=64, global_batch=8, pins={"pp": 2}, effort="fast")
    return meshwright.plan("tiny-llama", cluster=str(path), job=job)


@pytest.fixture(scope="module")
def prediction(made: meshwright.Plan) -> Prediction:
    assert made.prediction is not None
    return made.prediction


def test_times_of_the_step_add_up(made: meshwright.Plan, prediction: Prediction) -> None:
    (bars,) = figures.shares(made.decisions, prediction)["data"]
    assert sum(bars["x"]) == pytest.approx(prediction.step_us / 1e3, rel=2e-3)


def test_the_timeline_holds_every_action(made: meshwright.Plan, prediction: Prediction) -> None:
    drawn = figures.timeline(made.decisions, prediction)["data"]
    spans = [
        (row, start, start + length)
        for trace in drawn
        for row, start, length in zip(trace["y"], trace["base"], trace["x"], strict=True)
    ]
    for rank in range(2):
        inside = [(a, b) for row, a, b in spans if row == f"rank {rank}"]
        busy = sum(b - a for a, b in inside) * 1e3
        waited = prediction.timeline.exposed_us[rank]
        assert busy == pytest.approx(prediction.timeline.busy_us[rank] + waited)
        assert max(b for _, b in inside) <= prediction.step_us / 1e3


def test_memory_reaches_the_peak_and_no_more(prediction: Prediction) -> None:
    traces = [t for t in figures.memory(prediction)["data"] if t.get("visible")]
    level = [sum(t["y"][k] for t in traces) for k in range(len(traces[0]["x"]))]
    assert max(level) * 2**30 == pytest.approx(prediction.peak_bytes)


def test_more_of_a_resource_never_costs(made: meshwright.Plan, prediction: Prediction) -> None:
    gains = words.gains(made.decisions, prediction)
    assert gains[0][1] > 0 and all(share > -1e-9 for _, share in gains)


@pytest.mark.skipif(plotly_script() is None, reason="Plotly is not installed")
def test_the_page_needs_nothing_else(made: meshwright.Plan, pages: None, tmp_path: Path) -> None:
    path = tmp_path / "plan.txt"
    made.save(path)
    text = Path(f"{path}.html").read_text(encoding="utf-8")
    outside = text.replace(plotly_script().read_text(encoding="utf-8"), "")  # type: ignore[union-attr]
    assert not re.search(r"https?:|(src|@import)=", outside) and "@@" not in outside
    drawn = json.loads(re.search(r"^const figures = (.*);$", outside, re.MULTILINE)[1])  # type: ignore[index]
    assert set(re.findall(r'<div id="(figure-\w+)"', outside)) == set(drawn)
    assert "More memory changes nothing in this plan" in outside
    assert "The gap is to what a combination takes at the least" in outside


# Writes into the page what of its figures lies on something else, or beside its card.
LOOK = """<script>
const both = (a, b, from, to) => Math.min(a[to], b[to]) > Math.max(a[from], b[from]) + 1;
const over = (a, b) => a && b && both(a, b, "left", "right") && both(a, b, "top", "bottom");
const pairs = [[".g-xtitle", ".legend"], [".xaxislayer-above", ".legend"],
  [".updatemenu-container", ".modebar"]];
const wrong = [];
for (const name of Object.keys(figures)) {
  const box = part => document.querySelector(`#${name} ${part}`)?.getBoundingClientRect();
  for (const [one, two] of pairs)
    if (over(box(one), box(two))) wrong.push(`${name}: ${one} on ${two}`);
  const place = document.getElementById(name).parentElement;
  if (place.scrollWidth > place.clientWidth + 1) wrong.push(`${name}: cut off`);
}
document.body.dataset.wrong = wrong.join("; ") || "nothing";
</script>"""


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.skipif(plotly_script() is None, reason="Plotly is not installed")
@pytest.mark.parametrize("width", [500, 1280])  # a window is 500 wide at the least
def test_a_browser_draws_every_figure(
    made: meshwright.Plan, pages: None, tmp_path: Path, width: int
) -> None:
    """On a phone's width and a desk's, nothing over something else."""
    page = tmp_path / "page.html"
    page.write_text(made.page.replace("</body>", f"{LOOK}</body>"), encoding="utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--window-size={width},900", "--virtual-time-budget=5000"]
    command += [f"--user-data-dir={tmp_path}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    count = len(re.findall(r'<div id="figure-', made.page))
    assert f'data-drawn="{count}"' in done.stdout, done.stderr[-2000:]
    assert done.stdout.count('class="main-svg"') >= count
    assert re.findall(r'data-wrong="([^"]*)"', done.stdout) == ["nothing"]
