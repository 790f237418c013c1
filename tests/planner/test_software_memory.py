"""The peak of a layout under another stack: each difference holds what it says."""

import math
from dataclasses import replace

import pytest
from families import planned

from meshwright.ir.mesh import Mesh
from meshwright.ir.plan import Plan
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.simulate.predict import predict
from meshwright.planner.simulate.stage_memory import WORKSPACE_BYTES
from meshwright.planner.software.memory import (
    SCORES_HELD,
    Layers,
    communicators,
    peak_bytes,
)
from meshwright.planner.software.profile import Software, read_software

CLUSTER = parse_cluster("h200:1")
HEADS = 8  # of tiny-llama


@pytest.fixture(scope="module")
def kept() -> Plan:
    return planned("tiny-llama", "h200:1", "micro_batch=2", "recompute=none", seq=64)


@pytest.fixture(scope="module")
def again() -> Plan:
    return planned("tiny-llama", "h200:1", "micro_batch=2", "recompute=all", seq=256)


def held(plan: Plan, **fields: object) -> float:
    return peak_bytes(plan, CLUSTER, replace(Software("one"), **fields))  # type: ignore[arg-type]


def test_a_profile_without_differences_holds_what_ours_does(kept: Plan, again: Plan) -> None:
    """But for the workspace of a recording, which no other stack makes."""
    for plan in (kept, again):
        assert plan.replays
        assert held(plan) == predict(plan, CLUSTER).peak_bytes - WORKSPACE_BYTES


def test_gradients_take_the_bytes_that_the_profile_says(kept: Plan) -> None:
    params = sum(bucket.numel for bucket in kept.buckets)
    assert held(kept, grad_bytes=6) - held(kept, grad_bytes=4) == pytest.approx(2 * params)


def test_what_lies_outside_and_in_fragments_is_added(kept: Plan) -> None:
    own = held(kept)
    assert held(kept, outside_gib=2.0) == own + 2 * 2**30
    kinds = dict(predict(kept, CLUSTER).peaks[0].bytes_by_kind)
    moving = kinds["activations"] + kinds["temporaries"]
    assert held(kept, fragments=0.2) == pytest.approx(own + moving * 0.25)


def test_copies_of_gradients_count_the_larger_of_both(kept: Plan) -> None:
    """One device owns all parameters; the largest is the table of embeddings."""
    params = sum(bucket.numel for bucket in kept.buckets)
    largest = max(math.prod(p.local_shape(kept.mesh)) for p in kept.params)
    flat, copy = (held(kept, **{name: 2}) - held(kept) for name in ("flat_bytes", "copy_bytes"))
    assert (flat, copy) == (2 * params, 2 * largest)
    assert held(kept, flat_bytes=2, copy_bytes=2) == held(kept, flat_bytes=2)


def test_what_lies_idle_is_given_back_where_the_device_is_full(kept: Plan) -> None:
    software = Software("one", fragments=0.5, flat_bytes=6)
    own, whole = held(kept), peak_bytes(kept, CLUSTER, software)
    for memory in (int(own + whole) // 2, int(own) // 2):
        device = replace(CLUSTER.device, memory_bytes=memory)
        full = peak_bytes(kept, replace(CLUSTER, device=device), software)
        assert full == max(own, memory) < whole


def test_each_group_of_ranks_has_a_communicator(kept: Plan) -> None:
    assert held(kept, communicator_gib=1.0) == held(kept)
    counts = [communicators(Mesh(tuple(zip(("pp", "dp", "tp"), sizes, strict=True))))
              for sizes in ((1, 1, 1), (1, 4, 1), (1, 4, 2), (2, 4, 2))]  # fmt: skip
    assert counts == [0, 2, 3, 6]


def test_scores_of_kept_attentions_wait_for_backward(kept: Plan) -> None:
    """[B, H, S, S] of every layer, in float32 here."""
    layers = sum(".attention" in unit.name for unit in kept.instances)
    scores = kept.micro_batch * HEADS * kept.seq**2 * 4
    more = held(kept, attention_passes=(1, 1)) - held(kept)
    assert layers > 1 and more % scores == 0
    assert (layers - 1) * SCORES_HELD * scores <= more <= (layers + 1) * SCORES_HELD * scores


def test_a_loss_on_whole_logits_holds_them(kept: Plan) -> None:
    logits = kept.micro_batch * kept.seq * kept.vocab_size * 4
    more = held(kept, loss_passes=(1, 1), logits_held=6.0) - held(kept)
    assert 0 < more <= 6 * logits
    less = held(kept, loss_passes=(1, 1), logits_held=5.0) - held(kept)
    assert more - less == logits


def test_gradients_that_wait_for_the_last_micro_batch_are_whole() -> None:
    """Of two ranks each keeps all of them in float32, and no share."""
    words = "dp=2", "zero=3", "micro_batch=1", "recompute=none", "reduce_dtype=f32"
    plan = planned("tiny-llama", "h200:2", *words, seq=64)
    assert plan.num_microbatches > 1
    more = held(plan, reduces_once=True) - held(plan)
    kinds = dict(predict(plan, CLUSTER).peaks[0].bytes_by_kind)
    whole = sum(bucket.numel for bucket in plan.buckets) * 4
    assert more == whole - kinds["gradients"] - kinds.get("gradient buffers", 0.0)


def test_each_tp_rank_holds_the_logits_that_it_gathers() -> None:
    plan = planned("tiny-llama", "h200:2", "tp=2", "micro_batch=2", "shard_weights=1", seq=64)
    logits = plan.micro_batch * plan.seq * plan.vocab_size * 4
    shares = [held(plan, loss_passes=(1, 1), gathers_logits=g) for g in (False, True)]
    assert shares[1] - shares[0] == pytest.approx(5 * logits / 2)


def test_a_layer_that_runs_again_whole_keeps_what_enters_it_alone(again: Plan) -> None:
    """Ours keeps what enters each half of a layer; backward has all values of both."""
    units = predict(again, CLUSTER).model.stages[0]
    layer = tuple(unit for unit in units if ".0." in unit.name)
    first, second = Layers(again, CLUSTER, Software("w", recomputes_whole=True)).units(layer)
    apart = [unit.work for unit in layer]
    entry = apart[0].entry_bytes
    assert entry > 0 and [work.kept_bytes for work in apart] == [entry, entry]
    assert (first.work.kept_bytes, second.work.kept_bytes) == (entry, 0.0)
    assert second.work.backward.peak_bytes > max(work.backward.peak_bytes for work in apart)


def test_a_built_in_profile_holds_more_than_ours(again: Plan) -> None:
    software = replace(read_software("megatron-2022"), outside_gib=0.0)
    assert peak_bytes(again, CLUSTER, software) > held(again)
