"""shard_sequence=0: no rank of tp holds a shard of the sequence, and matmuls stay split."""

from dataclasses import replace

import pytest
from families import planned

import meshwright
from meshwright.ir.errors import PlanError
from meshwright.ir.mesh import TENSOR
from meshwright.ir.plan import Plan
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.planner.sharding.strategies import is_sequence

# A byte that is kept is worth so much that the sequence is cut where it may be.
WORDS = "tp=2", "micro_batch=2", "shard_weights=1", "price=1"


def sequence_shards(plan: Plan) -> int:
    """Values of pieces whose sequence a tensor axis cuts."""
    axes = plan.mesh.names(TENSOR)
    return sum(
        any(
            is_sequence(size) and shard.axis in axes
            for size, shards in zip(value.shape, piece.placements[name].dims, strict=True)
            for shard in shards
        )
        for piece in plan.pieces
        for name, value in piece.graph.values.items()
    )


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-gpt2"])
def test_the_sequence_stays_whole_over_tp(model: str) -> None:
    free = planned(model, "h200:2", *WORDS, seq=64)
    whole = planned(model, "h200:2", *WORDS, "shard_sequence=0", seq=64)
    assert sequence_shards(free) > 0
    assert sequence_shards(whole) == 0
    split = [p for p in whole.params if any(p.placement.dims)]
    assert len(split) > 4


def test_context_axes_cut_the_sequence_all_the_same() -> None:
    words = "cp=2", "tp=2", "micro_batch=2", "shard_sequence=0"
    plan = planned("tiny-llama", "h200:4", *words, seq=64)
    assert sequence_shards(plan) == 0


def test_memory_does_not_cut_features_in_its_stead() -> None:
    """Bytes are dear where memory is small; values between matmuls stay whole all the same."""
    model, found = meshwright.trace("tiny-gpt2", dtype="bf16"), []
    pins = parse_pins(["tp=2", "micro_batch=8", "shard_weights=1", "shard_sequence=0"])
    for size in (10**6, 10**13):
        cluster = parse_cluster("h200:2")
        cluster = replace(cluster, device=replace(cluster.device, memory_bytes=size))
        plan = make_plan(model, cluster, seq=2048, global_batch=8, pins=pins)
        found.append([piece.placements for piece in plan.pieces])
    assert found[0] == found[1]


def test_other_values_are_refused() -> None:
    with pytest.raises(PlanError, match="shard_sequence=2: expected 0 to 1"):
        parse_pins(["shard_sequence=2"])
