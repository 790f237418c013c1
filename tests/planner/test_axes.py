"""Replicas and context in the search: where they are generated, and where they win."""

from dataclasses import replace
from functools import partial

import pytest

from meshwright.ir.capture.export import trace
from meshwright.ir.errors import PlanError
from meshwright.ir.traced import Traced
from meshwright.models import PRESETS
from meshwright.models.decoder import Decoder
from meshwright.planner.budget import EFFORTS
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.candidates import candidates
from meshwright.planner.search.demands import check_pins
from meshwright.planner.search.pins import Pins, parse_pins
from meshwright.planner.search.search import search_plan


@pytest.fixture(scope="module")
def wide() -> Traced:
    """Two layers of a 7B: too few to be worth a pipeline."""
    config = replace(PRESETS["llama-7b"], layers=2, vocab=32000)
    return trace(partial(Decoder, config), "wide", "bf16", config.vocab)


def nodes(times: float) -> Cluster:
    """Four nodes of eight H100s; times: of the bandwidth between nodes, as a factor."""
    cluster = parse_cluster("h100:8x4")
    inner, outer = cluster.levels
    return replace(cluster, levels=(inner, replace(outer, bytes_per_s=outer.bytes_per_s * times)))


@pytest.mark.parametrize(("times", "gained"), [(0.25, (0.03, 1.0)), (8.0, (0.0, 0.02))])
def test_storage_has_a_copy_a_node_where_the_network_is_slow(
    wide: Traced, times: float, gained: tuple[float, float]
) -> None:
    """At 10 GB/s a device between nodes shards are summed over nodes once a step; at 320 it takes
    little longer to cut them over all of them. gained: least and most, as a share."""
    sizes = {"seq": 4096, "global_batch": 64, "budget": EFFORTS["fast"]}
    found = []
    for more in (["rep=1"], []):
        pins = parse_pins(["precision=pure", "rounding=nearest", *more])
        found.append(search_plan(wide, nodes(times), **sizes, pins=pins)[1].best)
    whole, copied = found
    assert gained[0] <= whole.timeline.step_us / copied.timeline.step_us - 1 <= gained[1]
    assert (copied.candidate.rep, copied.candidate.dp) == (4, 8)
    assert copied.candidate.zero > 0


def test_replicas_are_of_sharded_storage_only() -> None:
    for cluster in ("h100:8x4", "h200:8"):
        found = list(candidates(parse_cluster(cluster), 64, Pins(), 66))
        assert all(c.zero > 0 and c.dp * c.cp > 1 for c in found if c.rep > 1)
        assert any(c.rep > 1 for c in found) == (cluster == "h100:8x4")


def test_the_sequence_is_cut_where_rows_leave_devices_idle() -> None:
    """Or where a pin says so."""
    few = list(candidates(parse_cluster("h200:8"), 2, Pins(), 66))
    assert {c.cp for c in few if c.pp == c.tp == 1} == {4}
    assert {c.cp for c in candidates(parse_cluster("h200:8"), 64, Pins(), 66)} == {1}
    assert {c.cp for c in candidates(parse_cluster("h200:8"), 64, Pins(cp=2), 66)} == {2}
    ordered = candidates(parse_cluster("h200:8"), 64, Pins(cp_order="mirrored"), 66)
    assert {c.cp for c in ordered} == {2, 4, 8}


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        (["rep=2", "zero=0"], ("rep=2 with zero=0", "pin zero=1")),
        (["rep=8", "zero=1"], ("rep=8 with zero=1 over dp x cp = 1", "give these ranks to dp")),
        (["cp=3"], ("cp=3 takes 3 devices", "has 8", "a multiple of 3 devices")),
        (["cp=1", "cp_order=mirrored"], ("cp_order=mirrored with cp=1", "pin cp=2 or more")),
        (["rep=2", "dp=8"], ("rep=2 dp=8", "is 16 devices, the cluster has 8")),
    ],
)
def test_pins_of_axes_that_do_not_fit_are_refused(pins: list[str], said: tuple[str, ...]) -> None:
    with pytest.raises(PlanError) as raised:
        check_pins(parse_cluster("h200:8"), 64, "bf16", parse_pins(pins))
    assert all(text in str(raised.value) for text in said), raised.value


def test_an_order_of_context_on_one_device_is_refused() -> None:
    with pytest.raises(PlanError, match="needs cp=2 or more, the cluster has 1 device"):
        check_pins(parse_cluster("cpu:1"), 8, "f32", Pins(cp_order="mirrored"))
