"""What-if: sweeps make points, and what a point is answered is what `plan` says of it."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from families import planned

from meshwright import Job, MeshwrightError, Plan, plan, priced, trace, what_if
from meshwright.api.what_if import specs_of
from meshwright.cli import main
from meshwright.commands.what_if_table import Table
from meshwright.planner.budget import EFFORTS
from meshwright.planner.hardware.cluster import collective_us
from meshwright.planner.hardware.cluster_file import format_cluster, parse_cluster
from meshwright.planner.search.pins import Pins
from meshwright.planner.simulate.predict import predict
from meshwright.planner.what_if.answers import Answer, Step
from meshwright.planner.what_if.ask import Search
from meshwright.planner.what_if.edits import Point, parse_sweep, points
from meshwright.planner.what_if.prices import read_prices
from meshwright.planner.what_if.shape import Shape
from meshwright.runtime.metrics.devices import PEAKS

ASKED = Job(seq=64, global_batch=8, effort="fast")
GPUS = ("h200", "h100", "a100", "b200", "mi300x", "l40s", "rtx4090", "rtx5090")
SWEEPS = ("device.memory_gb=24", "link.nvlink.bandwidth=x0.1,x1")


def changed(spec: str, *sweeps: str) -> list[Point]:
    return points([spec], [parse_sweep(text) for text in sweeps], 64, 8)


def test_a_point_of_every_combination() -> None:
    found = changed("h200:8", "nodes=1,4", "seq=32,64", "device.memory_gb=x0.5")
    assert [(p.cluster.nodes, p.seq) for p in found] == [(1, 32), (1, 64), (4, 32), (4, 64)]
    assert {p.cluster.device.memory_bytes for p in found} == {
        parse_cluster("h200:8").device.memory_bytes // 2
    }
    assert found[0].swept == (("nodes", "1"), ("seq", "32"), ("device.memory_gb", "x0.5"))


def test_all_is_every_part_of_the_catalogue() -> None:
    assert specs_of(["all"]) == [f"{name}:8" for name in GPUS]
    assert specs_of(["cpu:2", "all:2"]) == ["cpu:2", *(f"{name}:2" for name in GPUS)]
    assert specs_of(["all:16,host_memory=1TiB"])[0] == f"{GPUS[0]}:8x2,host_memory=1TiB"
    growing = specs_of(["all"], least=True)
    assert growing == [f"{name}:{n}" for n in (1, 2, 4, 8) for name in GPUS]
    with pytest.raises(MeshwrightError, match="holds 8 devices, and 12 fill no whole nodes"):
        specs_of(["all:12"])


def test_the_least_hardware_is_the_fewest_devices_then_the_cheapest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts without a price come after those with one, and the fastest is not the least."""
    parts = tmp_path / "parts.toml"
    parts.write_text("# meshwright parts v1\n[A100]\nprice_per_hour = 0.5\n")
    words = ["tiny-llama", "--seq", "512", "--global-batch", "64", "--pin", "pp=1"]
    words += ["--objective", "hardware", "--prices", str(parts), "--cluster", "a100:1"]
    few = "device.memory_gb=0.001,40"
    for spec in ("h200:2", "h200:1", "l40s:1", "cpu:2"):
        words += ["--cluster", spec]
    assert main(["what-if", *words, "--sweep", few, "--dtype", "bf16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["points"]
    fitting = [point for point in found if point["plan"]]
    assert {point["devices"] for point in fitting} == {1}
    (best,) = (point for point in found if point["best"])
    assert best["cluster"].startswith("a100:1") and best["dollars_per_hour"] == 0.5
    assert min(fitting, key=lambda p: p["step_time_s"])["cluster"].startswith("h200:1")
    small = [point for point in found if not point["plan"]]
    # Two devices are not asked: one is enough.
    assert [p["devices"] for p in small] == [1, 1, 1] and len(fitting) == 3
    assert all(point["needed_bytes"] > point["usable_bytes"] for point in small)


def test_counts_are_those_of_the_named_cluster() -> None:
    (four,) = changed("h200:8", "nodes=4")
    assert format_cluster(four.cluster) == format_cluster(parse_cluster("h200:8x4"))


def test_no_reading_of_a_slower_link_is_below_its_own() -> None:
    """Some readings of a few KiB are below that of the fewest bytes."""
    found = changed("h200:8", "link.nvlink.bandwidth=x1,x0.01")
    own, slow = (point.cluster for point in found)
    for before, after in zip(own.levels[0].curves, slow.levels[0].curves, strict=True):
        pairs = zip(before.points, after.points, strict=True)
        assert all(0 < us <= later for (_, us), (_, later) in pairs)


def test_a_link_of_twice_the_bandwidth_halves_what_bytes_take() -> None:
    (twice,) = changed("h200:8", "link.nvlink.bandwidth=x2")
    base = parse_cluster("h200:8")
    few, many = 1, 2**29
    for kind in ("all_gather", "send_recv"):
        before, after = (
            collective_us(c, kind, many, 2) - collective_us(c, kind, few, 2)
            for c in (base, twice.cluster)
        )
        assert after == pytest.approx(before / 2)
    (same,) = changed("h200:8", f"link.nvlink.bandwidth={base.levels[0].bytes_per_s / 1e9!r}")
    times = [collective_us(c, "all_gather", many, 8) for c in (base, same.cluster)]
    assert times[1] == pytest.approx(times[0], rel=1e-5)


def test_answers_are_those_of_plan() -> None:
    """Though points share what is the same for them, in one order and the other."""
    answers = what_if("tiny-llama", clusters=["h200:2"], job=ASKED, sweeps=SWEEPS)
    assert len(answers) == 2
    for answer in answers:
        assert answer.step is not None
        text = format_cluster(answer.point.cluster)
        own = _planned(text)
        assert answer.step.step_us == own.costs["predicted_step_us"]
        assert answer.step.peak_bytes == own.costs["predicted_peak_bytes"]
        assert answer.step.tokens_per_s == pytest.approx(own.costs["predicted_tokens_per_s"])
        assert sum(share for _, share in answer.step.shares) == pytest.approx(1.0)


def test_a_point_forgets_what_differed_before_it() -> None:
    """A key that leaves out what its result reads gives a later point the answer of an earlier."""
    rates, memory = "device.matmul=x1,x0.25", "device.memory_gb=0.0987"
    asked = [*changed("h200:2", rates), *changed("h200:2", memory)]
    fresh = [_search().answer(point) for point in asked]
    steps = [answer.step for answer in fresh]
    assert None not in steps and all(a != b for a, b in combinations(steps, 2))
    shared = _search()
    found = {point: shared.answer(point) for point in asked[::-1]}
    assert [found[point] for point in asked] == fresh


def _search() -> Search:
    traced = trace("tiny-llama", dtype="bf16")
    return Search(traced, Pins(pp=1, tp=2), read_prices(), EFFORTS["fast"])


def _planned(cluster: str) -> Plan:
    path = Path("cluster.toml")
    path.write_text(cluster)
    return plan("tiny-llama", cluster=str(path), job=ASKED)


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_plan_priced_elsewhere() -> None:
    """What the device waits for the host is said, and twice the matmul rate takes less time
    without; where the plan does not fit, that is said."""
    job = replace(ASKED, pins={"dp": 2, "zero": 2, "micro_batch": 1})
    made = plan("tiny-llama", cluster="h200:2", job=job)
    sweeps = ["device.matmul=x1,x2", "device.memory_gb=140,0.001"]
    same, small, fast, _ = priced(made, clusters=["h200:2"], sweeps=sweeps)
    assert same.step is not None and fast.step is not None and small.step is None
    assert same.step.step_us == made.costs["predicted_step_us"] >= fast.step.step_us
    assert same.step.limit == "host"
    slow, fast = priced(
        made, clusters=["h200:2"], sweeps=["device.call_us=0.001", "device.matmul=x1,x2"]
    )
    assert slow.step is not None and fast.step is not None
    assert same.step.step_us > slow.step.step_us > fast.step.step_us
    assert small.why.endswith(" of 0.9 MiB usable")
    (other,) = priced(made, clusters=["h200:4"])
    assert other.why == "devices: the plan has 2, the point 4"


@pytest.mark.parametrize(
    "pins", [("dp=4", "zero=3"), ("tp=2", "pp=2", "schedule=zbv"), ("tp=4", "recompute=all")]
)
def test_a_shape_prices_each_cluster_as_a_fresh_one_does(pins: tuple[str, ...]) -> None:
    """What it keeps between clusters is nothing that the rates, links or type of a device change:
    step, streams and peaks are equal to the last bit, in any order."""
    made = planned("tiny-llama", "h200:4", *pins, seq=512, rows=8)
    shape, slow = Shape(made), "link.nvlink.bandwidth=x0.01"
    clusters = [parse_cluster(spec) for spec in ("h200:4", "cpu:4", "h100:4", "mi300x:4")]
    edited = [point.cluster for point in changed("h200:4", slow, "device.matmul=x0.3,x7")]
    for cluster in (*clusters, *edited, *clusters):
        found, fresh = shape.on(cluster), predict(made, cluster)
        assert found.timeline == fresh.timeline
        assert found.peaks == fresh.peaks


def test_days_price_and_energy() -> None:
    (answer,) = what_if("tiny-llama", clusters=["h200:2"], job=ASKED)
    assert answer.step is not None
    budget = answer.budget(1e9)
    hours = 1e9 / answer.step.tokens_per_s / 3600
    assert budget is not None and budget.days == pytest.approx(hours / 24)
    assert budget.dollars == pytest.approx(hours * 2 * 4.0)
    assert budget.kwh == pytest.approx(hours * 2 * 0.7)


def test_peaks_are_those_that_runs_are_measured_against() -> None:
    parts = read_prices().parts
    assert {name: part.peak_flops_per_s for name, part in parts} == {
        name: PEAKS[name] for name, _ in parts
    }


def test_own_prices_come_first(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('# meshwright parts v1\n["H200"]\nprice_per_hour = 2\n[CPU]\nwatts = 9.5\n')
    found = read_prices(path)
    assert found.of("NVIDIA H200 SXM").price_per_hour == 2
    assert found.of("NVIDIA H200 SXM").watts == 700
    assert found.of("CPU rank").watts == 9.5 and found.of("CPU rank").price_per_hour is None


def test_an_own_price_under_the_full_name_keeps_the_other_figures(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('# meshwright parts v1\n["NVIDIA H200 SXM"]\nprice_per_hour = 2.5\n')
    part, known = read_prices(path).of("NVIDIA H200 SXM"), read_prices().of("NVIDIA H200 SXM")
    assert part == replace(known, price_per_hour=2.5) and part.watts == 700


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prices = 1\n", "the first line must be '# meshwright parts v1'"),
        ("# meshwright parts v1\n[H200]\nprice = 1\n", "[H200] price: unknown; give price_per"),
        (
            "# meshwright parts v1\n[H200]\nwatts = -1\n",
            "[H200] watts is -1; give a number above 0",
        ),
        ("# meshwright parts v1\nH200 = 3\n", "H200 = 3; write [H200] and its figures"),
    ],
)
def test_a_price_file_with_a_mistake(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(MeshwrightError) as caught:
        read_prices(path)
    assert said in str(caught.value)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["what-if", "tiny-llama", "--cluster", "h200:2", "--seq", "64", "--global-batch", "8"]
    words += [
        "--pin",
        "pp=1",
        "--sweep",
        "device.memory_gb=0.001,40",
        "--tokens",
        "1e9",
        "--compare",
        "dp=2",
    ]
    assert main([*words, "--objective", "energy", "--csv", "t.csv", "--plot", "t.svg"]) == 0
    said, *table, plans, unfit, fits = capsys.readouterr().out.splitlines()
    assert said == "tiny-llama: searched, --effort fast" and plans == "plans"
    assert table[2].startswith("*  2  h200:2,device.memory_gb=40")
    assert table[0].split()[-7:-4] == ["gap", "dp=2", "days"]
    assert len(table) == 3 and table[1].endswith(" GiB too much")
    assert "no plan fits: " in unfit and "too much" in unfit and fits.startswith("   2  pp=1 dp=")
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [row["device.memory_gb"] for row in rows] == ["0.001", "40"]
    assert float(rows[1]["compared_step_time_s"]) > float(rows[1]["step_time_s"])
    assert (tmp_path / "t.svg").read_text().startswith("<?xml")


def test_the_pins_compared_with_say_why_nothing_has_them() -> None:
    (point,) = changed("h200:2")
    step = Step("tp=2", 1e3, 0.0, 1e6, None, 1.0, 2.0, (("compute", 1.0),))
    table = Table("tiny", "searched", "time", None, ("tp=3",), True)
    table.answers, table.others = [Answer(point, step)], [Answer(point, None, "3 of 2 devices")]
    assert table.text.splitlines()[-2:] == ["   1  tp=2", "      tp=3: 3 of 2 devices"]
    assert table.facts["points"][0]["compared_why_not"] == "3 of 2 devices"


def test_a_budget_names_the_figures_that_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tiny-llama", "--cluster", "mi300x:2", "--cluster", "h200:2", "--seq", "64"]
    words += ["--global-batch", "8", "--pin", "pp=1", "--pin", "dp=2", "--tokens", "1e9"]
    assert main(["what-if", *words]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "not known" in line]
    assert said == ["price_per_hour of AMD Instinct MI300X is not known; give it in --prices FILE"]


def test_a_cluster_given_twice_is_asked_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["what-if", "tiny-llama", "--cluster", "h200:1", "--cluster", "h200:1"]
    assert main([*words, "--cluster", "h200", "--seq", "64", "--global-batch", "8"]) == 0
    _, _, *rows, note, plans, _ = capsys.readouterr().out.splitlines()
    assert len(rows) == 1 and plans == "plans"
    assert note == "--cluster h200:1: given more than once, asked once"


def test_money_without_tokens_names_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "prices.toml"
    own.write_text("# meshwright parts v1\n[H200]\nprice_per_hour = 2\n")
    words = ["what-if", "tiny-llama", "--cluster", "h200:1", "--seq", "64", "--global-batch", "8"]
    said = "--tokens N, such as 1e12, adds the days, dollars and MWh of N tokens"
    for more in (["--prices", str(own)], ["--objective", "cost"]):
        assert main([*words, *more]) == 0
        assert said in capsys.readouterr().out.splitlines()
        assert main([*words, *more, "--tokens", "1e9"]) == 0
        assert said not in capsys.readouterr().out


def test_mfu_is_of_the_peak_that_a_sweep_scales() -> None:
    own, faster = changed("h200:2", "device.matmul=x1,x1000")
    shares = {p.matmul_factor: _search().answer(p).step for p in (own, faster)}
    assert set(shares) == {1.0, 1000.0}
    first, second = shares[1.0], shares[1000.0]
    assert first and second and first.mfu and second.mfu
    ratio = second.tokens_per_s / first.tokens_per_s
    assert second.mfu / first.mfu == pytest.approx(ratio / 1000)


def test_stopped_it_prints_what_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Search.answer

    def answer(search: Search, point: Point, *told: Callable[[str], None]) -> Answer:
        if point.seq == 32:
            raise KeyboardInterrupt
        return kept(search, point, *told)

    monkeypatch.setattr(Search, "answer", answer)
    words = ["--cluster", "h200:2", "--sweep", "seq=64,32", "--global-batch", "8", "--pin", "pp=1"]
    assert main(["what-if", "tiny-llama", *words, "--json"]) == 0
    printed = capsys.readouterr()
    assert "stopped with Ctrl-C; points finished: 1\n" in printed.err
    found = json.loads(printed.out)
    assert found["stopped"] and [point["seq_tokens"] for point in found["points"]] == [64]
