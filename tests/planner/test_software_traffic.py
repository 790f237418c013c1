"""Collectives of gradients and parameters as another stack runs them."""

import pytest
from families import planned

from meshwright.ir.mesh import REDUCED
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.hardware.topology import Links
from meshwright.planner.simulate.predict import predict
from meshwright.planner.simulate.step_model import bucket_bytes
from meshwright.planner.software.profile import Software
from meshwright.planner.software.step import model_under

WORDS = "rep=2", "dp=2", "micro_batch=1", "zero=1"


def test_gradients_reduced_whole_travel_over_replicas_and_storage_at_once() -> None:
    plan, cluster = planned("tiny-llama", "h200:2x2", *WORDS, seq=64), parse_cluster("h200:2x2")
    links, own = Links(cluster, plan.mesh), predict(plan, cluster).model.stages[0]
    whole = model_under(plan, cluster, Software("whole", reduces_whole=True)).stages[0]
    for ours, theirs in zip(own, whole, strict=True):
        us = links.group_us("all_reduce", ours.bucket_bytes, *REDUCED)
        assert theirs.reduce_us == pytest.approx(us if ours.reduce_us else 0.0)
    assert sum(unit.reduce_us for unit in whole) > 0


def test_each_owner_of_parameters_sends_its_own() -> None:
    """Two ranks own the parameters of the model, and each sends."""
    plan, cluster = planned("tiny-llama", "h200:2x2", *WORDS, seq=64), parse_cluster("h200:2x2")
    size = sum(bucket_bytes(bucket) for bucket in plan.buckets)
    inner = cluster.levels[0]
    model = model_under(plan, cluster, Software("owners", broadcasts=True))
    us = 2 * inner.alpha_us + size / inner.bytes_per_s * 1e6
    assert model.refresh_us[0] == pytest.approx(us)
