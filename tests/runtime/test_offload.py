"""Saved values in the host's memory: they come back as they were, buffers are used again."""

import torch

from meshwright.planner.simulate import step_model as step
from meshwright.runtime.engine import offload
from meshwright.runtime.engine.offload import HostStore

CPU = torch.device("cpu")


def values(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(4, 6, generator=generator)
    return [flat, flat.double().T, torch.randint(9, (3,), generator=generator)]


def test_the_plan_counts_with_as_many_units_in_transit() -> None:
    assert step.IN_TRANSIT == offload.IN_TRANSIT


def test_values_come_back_whatever_order_they_left_in() -> None:
    store = HostStore(CPU)
    for key in ((0, 0), (1, 0), (0, 1)):
        store.push(key, values(sum(key)))
    store.fetch((1, 0))
    store.fetch((5, 5))  # nothing is away
    for key in ((0, 1), (1, 0), (0, 0)):
        for found, given in zip(store.take(key), values(sum(key)), strict=True):
            assert torch.equal(found, given)


def test_what_leaves_is_copied_and_what_comes_back_is_no_buffer() -> None:
    store = HostStore(CPU)
    given = torch.ones(3)
    store.push((0, 0), [given])
    given.zero_()
    (first,) = store.take((0, 0))
    store.push((0, 0), [torch.full((3,), 7.0)])
    assert torch.equal(first, torch.ones(3))


def test_buffers_are_used_again_and_reserved_ahead() -> None:
    store = HostStore(CPU)
    size = sum(v.numel() * v.element_size() for v in values(0))
    for microbatch in range(5):
        store.push((0, microbatch), values(0))
        store.take((0, microbatch))
    assert store.host_bytes == size
    store.reserve(3)
    assert store.host_bytes == 3 * size
    for microbatch in range(3):
        store.push((0, microbatch), values(0))
    assert store.host_bytes == 3 * size


def test_what_is_settled_is_let_go_of() -> None:
    store = HostStore(CPU)
    for index in range(3):
        store.push((index, 0), values(index))
    store.settle(keep=[(2, 0), (3, 0)])
    assert list(store._leaving) == [(2, 0)]
