"""`--cluster auto` is the machine at hand."""

import pytest

from meshwright.api.demands import Cluster
from meshwright.api.here import AUTO, WITHOUT_GPUS, at_hand, named
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.runtime.launch.machine import Gpu

GIB = 2**30


@pytest.mark.parametrize(
    ("names", "memory_gib", "spec"),
    [
        (["NVIDIA H200"] * 8, 139.8, "h200:8"),
        (["NVIDIA GeForce RTX 4090"] * 2, 23.6, "rtx4090:2"),
        (["NVIDIA A100-SXM4-40GB"], 39.4, "a100:1,gpu_memory=39.4GiB"),
        ([], 0, WITHOUT_GPUS),
    ],
)
def test_cards_are_the_part_that_their_name_holds(
    names: list[str], memory_gib: float, spec: str
) -> None:
    found = named([Gpu(name, int(memory_gib * GIB)) for name in names], Cluster(AUTO))
    assert found.spec == spec
    assert parse_cluster(found.spec).device.memory_bytes > 0


def test_a_memory_that_is_given_stands() -> None:
    cards = [Gpu("NVIDIA H200", 140 * GIB)]
    assert named(cards, Cluster(AUTO, "100GiB")).spec == "h200:1,gpu_memory=100GiB"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["NVIDIA H200", "NVIDIA H100"], "2 GPUs here differ"),
        (["NVIDIA T4"], "NVIDIA T4 of 14.70 GiB is like no part of the catalogue"),
    ],
)
def test_other_cards_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        named([Gpu(name, int(14.7 * GIB)) for name in names], Cluster(AUTO))


def test_a_named_cluster_is_taken_as_it_is() -> None:
    said: list[str] = []
    assert at_hand(Cluster("h200:8"), said.append).name == "h200:8" and not said
