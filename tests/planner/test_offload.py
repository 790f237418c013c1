"""Offload: copies in the simulator, what they hold, what is chosen, and what it is worth."""

from dataclasses import replace
from functools import cache

import pytest
from machines import machine
from steps import model, unit

from meshwright.ir.capture.export import trace
from meshwright.ir.errors import InfeasibleError, PlanError
from meshwright.ir.mesh import compute_mesh
from meshwright.ir.text.plan_text import format_plan, parse_plan
from meshwright.ir.traced import Traced
from meshwright.models import PRESETS
from meshwright.models.decoder import Decoder
from meshwright.planner.cost.op_cost import Costs
from meshwright.planner.cost.piece_cost import offloadable, offloading
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.hardware.usable import HOST_SHARE, RESERVED_SHARE
from meshwright.planner.remat.options import offloads
from meshwright.planner.report.explain import explain_value
from meshwright.planner.report.report import search_report
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.candidates import Candidate
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins, parse_pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.search.search import search_plan
from meshwright.planner.simulate.predict import predict
from meshwright.planner.simulate.simulator import simulate
from meshwright.planner.simulate.stage_memory import memory_of_units
from meshwright.planner.simulate.step_model import StepModel, Unit

SIZES = {"seq": 256, "global_batch": 4}


@cache
def deep() -> Traced:
    """Of so many layers that what is in transit is little of the whole."""
    config = replace(PRESETS["tiny-llama"], layers=8)
    return trace(lambda: Decoder(config), "deep", "bf16", config.vocab)


def moving(f: float, b: float, away_us: float, **work: float) -> Unit:
    found = unit(f, b)
    return replace(found, work=replace(found.work, away_us=away_us, **work))


def one_stage(units: list[Unit], m: int = 1) -> StepModel:
    made = model("1f1b", [(0, 0)], m)
    return replace(made, stages=(tuple(units),))


def test_copies_hide_behind_the_compute_of_the_next_units() -> None:
    units = [moving(10, 10, 9), moving(10, 10, 9), moving(10, 10, 9), moving(10, 10, 0)]
    timeline = simulate(one_stage(units, m=3), streams=True)
    assert timeline.step_us == pytest.approx(3 * 80)
    streams = {e.stream for e in timeline.events}
    assert {"copy out", "copy back"} <= streams


def test_compute_waits_for_copies_that_are_longer() -> None:
    """Out: 10 to 35, waited for at the end of the unit two later, 30. Back: asked for at 55, with
    the backward of the unit two later, there at 80, where compute is at 75."""
    units = [moving(10, 10, 25), *[moving(10, 10, 0)] * 3]
    timeline = simulate(one_stage(units), streams=True)
    assert timeline.exposed_us[0] == pytest.approx(5 + 5)
    assert timeline.step_us == pytest.approx(90)
    found = {e.stream: (e.start_us, e.end_us) for e in timeline.events if e.stream != "compute"}
    assert found == {"copy out": (10, 35), "copy back": (55, 80)}


def test_a_copy_is_not_fetched_before_it_has_left() -> None:
    """The last unit's is waited for at the end of the stage, and comes back at once: 20 exposed."""
    timeline = simulate(one_stage([moving(10, 10, 0), moving(10, 10, 20)]))
    assert timeline.step_us == pytest.approx(40 + 20 + 20)


def test_a_stage_holds_what_is_on_its_way() -> None:
    """Beside a unit: those of the two before it, and in backward its own."""
    sizes = (1.0, 2.0, 4.0, 8.0, 0.0)
    units = [moving(1, 1, 1.0, kept_bytes=100.0, away_bytes=size) for size in sizes]
    memory = memory_of_units(units, split=False)
    assert memory.kept_bytes == 500.0
    assert memory.away_bytes == 15.0
    assert memory.moments["B"].live_bytes == 500.0 + 8.0 + 4.0  # the last unit's own is 0
    assert memory.moments["F"].live_bytes == 400.0 + 8.0 + 4.0


def tight(share: float, link: float = 1e11) -> tuple[Cluster, Cluster]:
    """A machine with memory for everything, and one with a share of what the fastest plan takes."""
    base = machine(1, 2**40, 1e11, 1e9, 0.0)
    device = replace(base.device, hbm_bytes_per_s=1e12)
    roomy = replace(base, device=device, host_link_bytes_per_s=link)
    _, _, prediction = planned(roomy, Pins())
    memory = share * prediction.peak_bytes / (1 - RESERVED_SHARE)
    return roomy, replace(roomy, device=replace(roomy.device, memory_bytes=int(memory)))


def planned(cluster: Cluster, pins: Pins):
    pins = replace(pins, micro_batch=4)
    return search_plan(deep(), cluster, **SIZES, pins=pins)


def test_offload_is_faster_than_to_compute_again_where_memory_is_short() -> None:
    roomy, short = tight(0.6)
    best, again, away = (
        planned(cluster, parse_pins(pins))
        for cluster, pins in ((roomy, ()), (short, ()), (short, ("offload=on",)))
    )
    assert not any(p.offloaded for p in again[0].pieces)
    plan, found, prediction = away
    assert best[2].step_us < prediction.step_us < again[2].step_us
    assert any(p.offloaded for p in plan.pieces)
    assert not plan.piece(plan.instances[-1].piece).offloaded
    assert found.bound_us <= prediction.step_us
    assert prediction.peak_bytes <= (1 - RESERVED_SHARE) * short.device.memory_bytes
    text = format_plan(plan)
    assert format_plan(parse_plan(text)) == text
    assert predict(parse_plan(text), short).step_us == prediction.step_us
    said = search_report(plan, found, prediction)
    assert "on host" in said
    assert "host memory, of" in said
    name = next(n for p in plan.pieces for n in p.offloaded)
    assert "in the host's memory" in explain_value(plan, name)


def test_nothing_is_offloaded_where_memory_is_not_short() -> None:
    roomy, _ = tight(1.0)
    plan, _, _ = planned(roomy, Pins(offload="on"))
    assert not any(p.offloaded for p in plan.pieces)


def test_a_plan_offloads_no_more_than_the_host_holds() -> None:
    _, short = tight(0.6)
    _, _, prediction = planned(short, Pins(offload="on"))
    assert prediction.host_bytes > 0
    small = replace(short, host_memory_bytes=int(0.5 * prediction.host_bytes / HOST_SHARE))
    _, _, less = planned(small, Pins(offload="on"))
    assert less.host_bytes <= HOST_SHARE * small.host_memory_bytes


def test_what_does_not_fit_names_offload_as_a_way_out() -> None:
    _, short = tight(0.75)
    pins = Pins(recompute="none", micro_batch=4)
    with pytest.raises(InfeasibleError, match="--pin offload=on"):
        search_plan(deep(), short, **SIZES, pins=pins)
    plan, _, _ = search_plan(deep(), short, **SIZES, pins=replace(pins, offload="on"))
    assert any(p.offloaded for p in plan.pieces)


def test_offload_without_a_search_is_refused() -> None:
    cluster = machine(1, 2**40, 1e12, 1e9, 0.0)
    with pytest.raises(PlanError, match="for the search to say"):
        make_plan(deep(), cluster, **SIZES, pins=Pins(offload="on"))


def test_options_offload_what_alone_fills_its_memory_within_the_time_of_a_pass() -> None:
    roomy, _ = tight(1.0, link=2e9)
    candidate_costs = CandidateCosts(Problem(deep(), roomy, 256, 4, Pins()))
    costs: Costs = candidate_costs.op_costs(1, 4, False)
    c = Candidate(1, 1, 1, 4, 1, 0, "none", "1f1b")
    counted = 0
    for name, found in candidate_costs.options(c).items():
        low = candidate_costs.sharding(compute_mesh(1)).lowered[name]
        for option in found:
            pairs = offloadable(low.graph, low.placements, option[0].saved, costs)
            given = low.graph, low.placements, option[0].saved
            for kept in offloads(low.graph, low.placements, option, costs):
                work = offloading(option[1], *given, kept.offloaded, costs)
                assert work.away_us <= min(option[1].forward.us, option[1].backward.us)
                assert work.kept_bytes == option[1].kept_bytes - work.away_bytes
                assert work.forward.us > option[1].forward.us
                assert set(kept.offloaded) <= {n for _, n in pairs}
                counted += 1
    assert counted
