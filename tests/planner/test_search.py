"""The search: what it reports, refuses and repeats, and the bound of each combination."""

import itertools
import re
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from machines import in_nodes, machine
from sampling import mostly_long

import meshwright
from meshwright.ir.errors import InfeasibleError
from meshwright.ir.mesh import compute_mesh
from meshwright.ir.sizes import num_elements
from meshwright.ir.text.plan_text import format_plan, parse_plan
from meshwright.ir.traced import Traced
from meshwright.planner.bounds.lp import bound_pipeline
from meshwright.planner.budget import BUDGET, EFFORTS
from meshwright.planner.cost.counts import number
from meshwright.planner.hardware.catalogue import CATALOGUE
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.hardware.usable import usable_bytes
from meshwright.planner.pipeline.schedules import GENERATORS
from meshwright.planner.search import incumbent, problem
from meshwright.planner.search.candidate_bounds import CandidateBounds
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.candidates import candidates, may_offload
from meshwright.planner.search.elsewhere import larger, other_devices, states_bytes
from meshwright.planner.search.fitting import (
    fit,
    fitted_to,
    least_bound_bytes,
    least_peak_bytes,
    polished,
)
from meshwright.planner.search.infeasible import Refusal, frugal, larger_memory
from meshwright.planner.search.lp_bound import pipeline_of, tightened
from meshwright.planner.search.other_placements import other_placements
from meshwright.planner.search.pins import Pins, parse_pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.search.search import Found, search, search_plan
from meshwright.planner.search.stopping import Stop
from meshwright.planner.simulate.predict import predict

SEQ = 64


@pytest.fixture(scope="module")
def model() -> Traced:
    return meshwright.trace("tiny-llama", dtype="bf16")


@pytest.fixture(scope="module")
def frozen() -> Traced:
    """The same model with a frozen embedding."""
    return meshwright.trace("tiny-llama", dtype="bf16", freeze="embed.*")


@pytest.mark.parametrize(
    "pins", mostly_long([{}, {"tp": 2}, {"pp": 2, "zero": 2}, {"recompute": "all"}], {})
)
def test_what_is_reported_is_what_the_text_costs(model, pins) -> None:
    cluster = parse_cluster("cpu:4")
    plan, found, _ = search_plan(model, cluster, seq=SEQ, global_batch=8, pins=Pins(**pins))
    for name, value in pins.items():
        held = getattr(plan, name) if hasattr(plan, name) else plan.mesh.size(name)
        assert held == value
    read = parse_plan(format_plan(plan))
    again = predict(read, cluster)
    costs = dict(read.costs)
    assert again.step_us == pytest.approx(costs["predicted_step_us"], rel=1e-12)
    assert again.peak_bytes == pytest.approx(costs["predicted_peak_bytes"], rel=1e-12)
    assert found.best.timeline.step_us == pytest.approx(again.step_us, rel=1e-12)
    assert found.best.peak_bytes == pytest.approx(again.peak_bytes, rel=1e-12)
    assert costs["bound_us"] <= costs["predicted_step_us"]


def test_the_same_question_gives_the_same_bytes(model) -> None:
    texts = {
        format_plan(
            search_plan(model, parse_cluster("cpu:4"), seq=SEQ, global_batch=8, pins=Pins())[0]
        )
        for _ in range(2)
    }
    assert len(texts) == 1


@pytest.mark.parametrize("tp", [2, 4])
def test_placements_are_for_as_many_rows_as_run(model, tp: int) -> None:
    """As where the micro-batch is pinned; those for one row take 7 and 15% longer here."""
    cluster, fast = machine(4, 2**26, 1e10, 1e8, 0.0), EFFORTS["fast"]
    best = search(CandidateCosts(Problem(model, cluster, SEQ, 16, Pins(tp=tp), fast))).best
    rows = best.candidate.micro_batch
    pins = Pins(tp=tp, micro_batch=rows)
    pinned = search(CandidateCosts(Problem(model, cluster, SEQ, 16, pins, fast))).best
    assert rows > 1 and best.timeline.step_us == pytest.approx(pinned.timeline.step_us, rel=1e-9)


@pytest.mark.parametrize("when", ["candidate 2", "other cuts of plan 1"])
def test_ctrl_c_ends_a_search_with_the_best_plan_so_far(model, when: str) -> None:
    def interrupted(text: str) -> None:
        if when in text and "best so far" in text:
            raise KeyboardInterrupt

    costs = CandidateCosts(Problem(model, parse_cluster("cpu:4"), SEQ, 8, Pins()))
    whole = search(costs)
    stopped = search(costs, interrupted, Stop(allowed=True))
    assert when in stopped.stopped and not whole.stopped
    assert stopped.bound_us <= whole.best.timeline.step_us <= stopped.best.timeline.step_us
    with pytest.raises(KeyboardInterrupt):
        search(costs, interrupted)


def test_what_does_not_fit_names_the_demands_and_changes_that_do(model) -> None:
    cluster = machine(4, 1_000_000, 1e12, 1e9, 0.0)
    costs = CandidateCosts(Problem(model, cluster, SEQ, 8, Pins()))
    search(costs)
    pins = Pins(pp=1, tp=1, zero=0, micro_batch=2, recompute="none")
    with pytest.raises(InfeasibleError) as refused:
        search(costs.under(pins=pins))
    message = str(refused.value)
    assert re.search(r" MiB too much: ([\w ]+ [\d.]+ MiB, ){2,3}[\w ]+ [\d.]+ MiB; ", message)
    _check_conflict(costs, pins, message)
    _check_changes(costs, pins, message)


def test_what_a_pin_saves_is_not_asked_for(model) -> None:
    """Without masters, whatever other pins are free."""
    cluster, needed = machine(1, 1_000_000, 1e12, 1e9, 0.0), {}
    for precision in ("master", "pure"):
        pins = Pins(precision=precision, rounding="nearest" if precision == "pure" else None)
        small = replace(cluster, device=replace(cluster.device, memory_bytes=100_000))
        costs = CandidateCosts(Problem(model, small, SEQ, 8, pins))
        with pytest.raises(InfeasibleError) as refused:
            search(costs)
        message = str(refused.value)
        assert ("under precision=pure needs" in message) == (precision == "pure"), message
        needed[precision] = float(re.findall(r"needs ([\d.]+) ", message)[0])
    assert needed["pure"] < needed["master"]


def test_states_that_no_devices_hold_are_refused_before_anything_is_placed(model) -> None:
    """Weights, gradients, masters and moments, evenly over both devices; and nothing is solved."""
    count = sum(number(num_elements(p.value.shape), {}) for p in model.graph.inputs_of("param"))
    cluster = machine(2, 1_000_000, 1e12, 1e9, 0.0)
    precision = Problem(model, cluster, SEQ, 8, Pins()).precision
    each = count * (precision.param + precision.grad + precision.state) / 2
    share = usable_bytes(cluster) / cluster.device.memory_bytes
    for spare, said in ((0.99, "alone, shared by all 2, "), (1.01, "at the least found (")):
        device = replace(cluster.device, memory_bytes=spare * each / share)
        small, lines = replace(cluster, device=device), []
        with pytest.raises(InfeasibleError, match=re.escape(said)):
            search(CandidateCosts(Problem(model, small, SEQ, 8, Pins())), lines.append)
        placed = [line for line in lines if line.startswith("placements")]
        assert bool(placed) == (spare > 1)


def _check_conflict(costs: CandidateCosts, pins: Pins, message: str) -> None:
    """Nothing fits under the pins named, and something under all but any one of them."""
    named = message.split("no plan fits: ")[1].split(" need")[0].split(" and ")
    alone = {name: getattr(pins, name) for name in (pair.split("=")[0] for pair in named)}
    assert [f"{name}={value}" for name, value in alone.items()] == named
    with pytest.raises(InfeasibleError):
        search(costs.under(pins=Pins(**alone)))
    for name in alone:
        fewer = {other: value for other, value in alone.items() if other != name}
        search(costs.under(pins=Pins(**fewer)))


def _check_changes(costs: CandidateCosts, pins: Pins, message: str) -> None:
    """Every change offered is one that fits."""
    ways = message.split("what would fit: ")[1].split("; ")
    changes = [way for way in ways if "instead of" in way and "--seq" not in way]
    assert changes
    for way in changes:
        given = {}
        for change in way.split(" and "):
            name, _, rest = change.split(" instead of ")[0].partition("=")
            given[name.split(" ")[0]] = int(rest) if rest else None
        search(costs.under(pins=replace(pins, **given)))
    seq = [int(way.split()[1]) for way in ways if "--seq" in way]
    assert all(shorter < SEQ for shorter in seq)
    assert "about" in ways[-1]
    times, device = float(ways[-1].split()[1]), costs.problem.cluster.device
    larger = replace(device, memory_bytes=int(times * device.memory_bytes))
    cluster = replace(costs.problem.cluster, device=larger)
    search(CandidateCosts(Problem(costs.problem.traced, cluster, SEQ, 8, pins)))


@pytest.mark.long
def test_a_model_that_is_too_large_is_told_how_many_devices_hold_it(
    model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem, "workspace_bytes", lambda *given: 0.0)
    node = CATALOGUE["h200"]
    small = replace(node, device=replace(node.device, memory_bytes=1_000_000))
    monkeypatch.setitem(CATALOGUE, "h200", small)
    cluster = parse_cluster("h200:1")
    names = [c.name for c in itertools.islice(larger(cluster), 4)]
    assert names == ["h200:2", "h200:4", "h200:8", "h200:8x2"]
    with pytest.raises(InfeasibleError) as refused:
        search(CandidateCosts(Problem(model, cluster, SEQ, 16, Pins())))
    name = re.findall(r"--cluster (\S+);", str(refused.value))[0]
    search(CandidateCosts(Problem(model, parse_cluster(name), SEQ, 16, Pins())))
    smaller = parse_cluster("h200:1" if name == names[0] else names[names.index(name) - 1])
    with pytest.raises(InfeasibleError):
        search(CandidateCosts(Problem(model, smaller, SEQ, 16, Pins())))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards of 1 MB, of 1.2 MB and, for the others, far more; no matmul has a workspace."""
    monkeypatch.setattr(problem, "workspace_bytes", lambda *given: 0.0)
    for name, size in (("h200", 1_000_000), ("h100", 1_200_000)):
        node = CATALOGUE[name]
        small = replace(node, device=replace(node.device, memory_bytes=size))
        monkeypatch.setitem(CATALOGUE, name, small)


def _asked(model: Traced, spec: str, pins: Pins) -> CandidateCosts:
    return CandidateCosts(Problem(model, parse_cluster(spec), SEQ, 16, pins))


def _refused(costs: CandidateCosts) -> list[str]:
    """Return the ways that a refusal offers."""
    with pytest.raises(InfeasibleError) as refused:
        search(costs)
    return str(refused.value).split("what would fit: ")[1].split("; ")


def test_a_larger_memory_is_a_bound_that_holds_or_one_that_is_enough() -> None:
    """1.58 times fits where the states alone need 1.541, so that "more than 1.6" is not said."""
    assert larger_memory(1.541, at_least=True) == "more than 1.54 times the memory of a device"
    assert larger_memory(27.079, at_least=True).startswith("more than 27.07 times")
    assert larger_memory(1.541, at_least=False) == "about 1.6 times the memory of a device"


def test_the_nearest_cards_that_hold_as_many_devices_are_named(model, small_parts: None) -> None:
    """Those of 1.2 MB hold it no more than those of 1 MB, so the next larger ones are named."""
    kinds = [cluster.name for cluster in other_devices(parse_cluster("h200:1"))]
    assert kinds[0] == "h100:1" and kinds[1:3] == ["rtx4090:1", "rtx5090:1"]
    ways = _refused(_asked(model, "h200:1", Pins(pp=1)))
    assert "--cluster rtx4090:1 or rtx5090:1" in ways
    search(_asked(model, "rtx4090:1", Pins(pp=1)))
    with pytest.raises(InfeasibleError):
        search(_asked(model, "h100:1", Pins(pp=1)))


def test_pins_and_devices_change_together_where_neither_helps_alone(
    model, small_parts: None
) -> None:
    """A mesh of one device is pinned, and no other card is large enough for it."""
    fewer = {name: CATALOGUE[name] for name in ("h200", "h100")}
    pins = {"pp": 1, "dp": 1, "tp": 1, "cp": 1, "precision": "pure", "rounding": "nearest"}
    with mock.patch.dict(CATALOGUE, fewer, clear=True):  # which keeps the order of the others
        ways = _refused(_asked(model, "h200:1", Pins(**pins)))
        (both,) = [way for way in ways if way.startswith("--cluster")]
        cluster, _, change = both.removeprefix("--cluster ").partition(" and ")
        name, value = change.split(" instead of ")[0].split("=")
        search(_asked(model, cluster, Pins(**{**pins, name: int(value)})))


def test_pins_that_leave_no_mesh_alone_are_no_conflict(model) -> None:
    """Three rows go over eight nodes of one device only where all of them cut the sequence."""
    cluster = in_nodes(machine(8, 2**10, 1e11, 1e9, 3.0), 8, 10.0)
    free, pinned = (
        CandidateCosts(Problem(model, cluster, SEQ, 3, p)) for p in (Pins(), Pins(cp=8))
    )
    assert not frugal(free) and frugal(pinned)
    assert Refusal(pinned, 1.0).conflict() == ("cp",)


@pytest.mark.parametrize("pins", [Pins(), Pins(schedule="zbv", tp=1)])
def test_the_least_memory_is_that_of_every_candidate_asked_without_bounds(
    model, monkeypatch: pytest.MonkeyPatch, pins: Pins
) -> None:
    cluster = machine(4, 1_000_000, 1e12, 1e9, 0.0)
    costs = CandidateCosts(Problem(model, cluster, SEQ, 8, pins))
    bounds = {c: least_bound_bytes(costs, c) for c in frugal(costs)}
    refusal = Refusal(costs, usable_bytes(cluster))
    found = refusal.least(tuple(refusal.pinned()))
    monkeypatch.setattr(CandidateBounds, "may_fit", lambda *_: True)
    needs = {c: least_peak_bytes(costs, c) for c in frugal(costs)}
    assert found == min((need, c) for c, need in needs.items())
    assert all(bound <= needs[c] for c, bound in bounds.items())


def test_no_larger_cluster_is_named_for_devices_that_the_catalogue_lacks() -> None:
    cluster = parse_cluster("h200:4")
    ours = replace(cluster, device=replace(cluster.device, memory_bytes=1))
    assert list(larger(cluster)) and not list(larger(ours))
    assert not list(larger(replace(cluster, name="ours")))


@pytest.mark.parametrize("schedule", mostly_long(GENERATORS, "1f1b", "zbv"))
def test_the_bound_of_every_combination_holds(model, schedule) -> None:
    costs = CandidateCosts(Problem(model, machine(4, 2**30, 1e11, 1e9, 3.0), SEQ, 8, Pins()))
    count = len(model.segmented.instances)
    for candidate in candidates(costs.problem.cluster, 8, Pins(schedule=schedule), count):
        fitted = fit(costs, candidate, 1e15)
        assert fitted is not None
        bound = CandidateBounds(costs).bound_us(candidate)
        assert bound <= fitted.timeline.step_us * (1 + 1e-9), str(candidate)
        assert CandidateBounds(costs).floor_us(candidate) <= fitted.timeline.step_us * (1 + 1e-9)
        for effort in (BUDGET.quick, BUDGET.thorough):
            lp_bound = tightened(costs, candidate, 1e15, effort=effort).step_us
            assert lp_bound <= fitted.timeline.step_us * (1 + 1e-9), str(candidate)


def test_frozen_parameters_need_no_memory_but_their_own(model, frozen) -> None:
    """bf16: a trained element has a gradient, a master and two moments in float32 beside it."""
    trained, some = (
        states_bytes(Problem(m, parse_cluster("h200:1"), SEQ, 8, Pins())) for m in (model, frozen)
    )
    (embedding,) = (i.value for i in frozen.graph.inputs_of("param") if not i.trainable)
    assert trained - some == 16 * number(num_elements(embedding.shape), {})


def test_bounds_over_nodes_hold_for_a_model_with_frozen_parameters(frozen) -> None:
    """Frozen buckets are never updated or refreshed, so their part of the tail takes no time."""
    cluster = in_nodes(machine(4, 2**30, 1e11, 1e9, 3.0), 2, 10.0)
    costs = CandidateCosts(Problem(frozen, cluster, SEQ, 8, Pins()))
    pins, count = Pins(pp=2, dp=2, micro_batch=1), len(frozen.segmented.instances)
    space = list(candidates(cluster, 8, pins, count))
    assert {c.zero for c in space} == {0, 1, 2, 3}
    for candidate in space:
        bound = CandidateBounds(costs).bound_us(candidate)
        for c in (candidate, candidate.reordered()):
            assert c is not None and (fitted := fit(costs, c, 1e15)) is not None
            assert bound <= fitted.timeline.step_us * (1 + 1e-9), str(c)


def test_an_lp_bound_ends_where_it_is_enough(model) -> None:
    costs = CandidateCosts(Problem(model, machine(4, 2**30, 1e11, 1e9, 3.0), SEQ, 8, Pins()))
    space = candidates(costs.problem.cluster, 8, Pins(pp=4, schedule="1f1b"), 6)
    pipeline = pipeline_of(costs, next(space), None)
    whole = bound_pipeline(pipeline).step_us
    assert 0 < bound_pipeline(pipeline, enough_us=1.0).step_us <= whole


@pytest.mark.long
def test_placements_at_another_price_are_told_apart_and_never_lose(model) -> None:
    """On devices whose memory is worth something next to their compute."""
    cluster = machine(4, 2**24, 1e9, 1e9, 0.0)
    costs = CandidateCosts(Problem(model, cluster, SEQ, 8, Pins(tp=2, dp=2)))
    mesh, shares = compute_mesh(2), BUDGET.price_shares
    base = costs.sharding(mesh)
    others = [other.sharding(mesh) for _, other in other_placements(costs, mesh, 1, shares)]
    assert others and not any(base.same_placements(other) for other in others)
    assert base.same_placements(
        CandidateCosts(Problem(model, cluster, SEQ, 8, Pins(tp=2, dp=2))).sharding(compute_mesh(2))
    )
    fixed = search(
        CandidateCosts(Problem(model, cluster, SEQ, 8, Pins(tp=2, dp=2, price=base.price)))
    )
    free = search(costs)
    assert free.best.timeline.step_us <= fixed.best.timeline.step_us


def test_polishing_never_loses_and_stays_within_memory(model) -> None:
    costs = CandidateCosts(Problem(model, machine(4, 2**30, 1e11, 1e9, 3.0), SEQ, 8, Pins()))
    for candidate in candidates(costs.problem.cluster, 8, Pins(pp=2, dp=2), 6):
        loose = fit(costs, candidate, 1e15)
        limit = 0.8 * loose.peak_bytes
        fitted = fit(costs, candidate, limit)
        if fitted is not None:
            better = polished(costs, fitted, limit)
            assert better.timeline.step_us <= fitted.timeline.step_us
            assert better.peak_bytes <= limit


def test_better_cuts_of_one_plan_serve_another_of_its_schedule(
    model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descent that goes nowhere from the worst cuts there are."""
    costs = CandidateCosts(Problem(model, machine(4, 2**30, 1e11, 1e9, 3.0), SEQ, 8, Pins()))
    count = len(model.segmented.instances)
    pins = Pins(schedule="zbv", pp=2, dp=2, micro_batch=1, recompute="none")
    space = candidates(costs.problem.cluster, 8, pins, count)
    one, other = (c for c in space if c.zero in (0, 1))
    cuts = [(0, *at) for at in itertools.combinations(range(1, count), one.num_stages - 1)]
    ways = {c: [fitted_to(costs, c, starts, 1e15) for starts in cuts] for c in (one, other)}
    best = min(ways[one], key=lambda way: way.timeline.step_us)
    worst = max(ways[other], key=lambda way: way.timeline.step_us)
    monkeypatch.setattr(incumbent, "ways_to_fit", lambda *_: (worst,))
    monkeypatch.setattr(incumbent, "descended", lambda _costs, fitted, _limit: (fitted,))
    found = incumbent.Incumbent(costs, 1e15, print, 0, cuts={one.listing: best})
    found.fit(other, 0.0)
    assert found.best.starts == best.starts
    assert found.best_us < worst.timeline.step_us


@pytest.mark.parametrize(
    ("cluster", "pins", "offloads"),
    [
        ("h200:1", (), True),
        ("cpu:1", (), False),
        ("h200:1", ("recompute=all",), False),
        ("h200:1", ("offload=off",), False),
        ("cpu:1", ("recompute=all", "offload=on"), True),
    ],
)
def test_values_may_wait_on_the_host_where_devices_have_a_memory_of_their_own(
    cluster: str, pins: tuple[str, ...], offloads: bool
) -> None:
    assert may_offload(parse_cluster(cluster), parse_pins(list(pins))) is offloads


def test_a_pin_of_chunks_leaves_stages_of_few_units() -> None:
    found = list(candidates(parse_cluster("cpu:4"), 8, Pins(chunks=2, pp=2), 10))
    assert {c.schedule for c in found} == {"interleaved", "zbv"}
    free = list(candidates(parse_cluster("cpu:4"), 8, Pins(pp=2), 10))
    assert {c.chunks for c in free} == {1}


def test_the_bound_is_over_the_placements_of_the_plan(model) -> None:
    """Where other placements made the best plan faster, every combination is looked at with those,
    too: no other one may be faster than the bound."""
    costs = CandidateCosts(
        Problem(model, machine(4, 2_000_000, 1e10, 2e9, 0.0), SEQ, 8, Pins(tp=2))
    )
    found = search(costs)
    assert found.num_placements > 1 and found.costs.problem.pins != costs.problem.pins
    assert not found.costs.sharding(compute_mesh(2)).same_placements(
        costs.sharding(compute_mesh(2))
    )
    again = search(found.costs)
    assert found.bound_us <= again.bound_us * (1 + 1e-9)
    assert found.best.timeline.step_us <= again.best.timeline.step_us * (1 + 1e-9)


def test_other_placements_may_be_searched_before_the_rest(model) -> None:
    """Where the first plans gain much by another price of a byte, its placements come first: the
    answer is no slower, and the bound is over the default placements all the same."""

    said: list[str] = []

    def found(**changed: Any) -> Found:
        said.clear()
        budget = replace(BUDGET, **changed)
        cluster, pins = machine(4, 2_000_000, 1e10, 2e9, 0.0), Pins(tp=2, pp=2)
        return search(CandidateCosts(Problem(model, cluster, SEQ, 8, pins, budget)), said.append)

    def comes_first() -> bool:
        again = next(k for k, text in enumerate(said) if "again, with other placements" in text)
        return not any(text.startswith("candidate ") for text in said[:again])

    after = found(much_faster=float("inf"))
    assert not comes_first()
    before = found(much_faster=0.0)
    assert comes_first()
    default = found(price_shares=())
    assert 1 == default.num_placements < after.num_placements == before.num_placements
    assert before.best.timeline.step_us <= after.best.timeline.step_us * (1 + 1e-9)
    assert before.best.timeline.step_us < default.best.timeline.step_us
    assert before.bound_us <= default.bound_us * (1 + 1e-9)


@pytest.mark.parametrize(("flops", "memory"), [(1e11, 700_000), (1e12, 1_250_000)])
def test_where_nothing_fits_placements_that_hold_fewer_bytes_are_tried(
    model, flops, memory
) -> None:
    """Where matmuls take no time, a byte is worth little: tensor ranks hold whole weights."""
    said: list[str] = []
    cluster, pins = machine(4, memory, flops, 2e10, 0.0), Pins(tp=4, pp=1)
    costs = CandidateCosts(Problem(model, cluster, SEQ, 8, pins))
    found = search(costs, said.append)
    assert "placements that hold fewer bytes" in said
    assert found.costs.sharding(found.best.candidate.compute).price > 0
    ranked = CandidateCosts(Problem(model, cluster, SEQ, 8, replace(pins, price=0.0)))
    with pytest.raises(InfeasibleError):
        search(ranked, advise=False)


def test_ctrl_c_among_other_placements_leaves_the_best_plan(model) -> None:
    def interrupted(text: str) -> None:
        if "again, with other placements" in text:
            raise KeyboardInterrupt

    cluster = machine(4, 2_000_000, 1e10, 2e9, 0.0)
    costs = CandidateCosts(Problem(model, cluster, SEQ, 8, Pins(tp=2)))
    stopped = search(costs, interrupted, Stop(allowed=True))
    assert "again, with other placements" in stopped.stopped
    assert stopped.bound_us <= stopped.best.timeline.step_us
