"""What the load relies on in PyTorch's distributed checkpoint: exact overlaps of any boxes."""

import itertools
import math
import subprocess
import sys

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.runtime.checkpoint.planning import Read, plan_reads
from meshwright.runtime.engine.boxes import Box, Cut, pieces_of


def overlap(one: Box, other: Box) -> Box | None:
    """By the definition: per dim the indices that both have."""
    sides = [
        sorted(set(range(a, a + n)) & set(range(b, b + m)))
        for a, n, b, m in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    ]
    if not all(sides):
        return None
    return Box(tuple(s[0] for s in sides), tuple(len(s) for s in sides))


def boxes(dims: int) -> st.SearchStrategy[list[Box]]:
    numbers, sizes = (st.tuples(*[st.integers(low, 6)] * dims) for low in (0, 1))
    return st.lists(st.builds(Box, numbers, sizes), max_size=6)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 3).flatmap(lambda dims: st.tuples(boxes(dims), boxes(dims))))
def test_reads_are_the_overlaps_of_all_pairs(sides: tuple[list[Box], list[Box]]) -> None:
    stored, local = sides
    expected = {
        Read(s, k, part)
        for (s, one), (k, other) in itertools.product(enumerate(stored), enumerate(local))
        if (part := overlap(one, other)) is not None
    }
    found = plan_reads("x", stored, local)
    assert set(found) == expected and len(found) == len(expected)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_two_cuttings_of_a_tensor_feed_each_other(data: st.DataObject) -> None:
    """tp cuts in strides, dp the flat local box at any element: all elements arrive, once."""
    shape = (12, data.draw(st.integers(1, 4)))
    whole = torch.arange(math.prod(shape)).view(shape)
    stored, local = (_cutting(data, shape) for _ in range(2))
    arrived, times = torch.zeros_like(whole), torch.zeros_like(whole)
    for read in plan_reads("x", stored, local):
        held = whole[stored[read.stored].slices_of(Box((0, 0), shape))]
        target = read.part.slices_of(Box((0, 0), shape))
        arrived[target] = held[read.part.slices_of(stored[read.stored])]
        times[target] += 1
        assert overlap(read.part, local[read.local]) == read.part
    assert torch.equal(arrived, whole) and bool((times == 1).all())


def _cutting(data: st.DataObject, shape: tuple[int, int]) -> list[Box]:
    """Boxes of all ranks of some plan."""
    tp, outer, dp = (data.draw(st.sampled_from(n)) for n in ((1, 2, 3), (1, 2), (1, 2, 5)))
    rows = shape[0] // tp
    numel = rows * shape[1]
    stops = [numel * k // dp for k in range(dp + 1)]
    return [
        piece.box
        for index in range(tp)
        for first, last in itertools.pairwise(stops)
        for piece in pieces_of((rows, shape[1]), (Cut(0, outer, index, tp),), first, last)
    ]


def test_only_a_load_imports_it() -> None:
    """A start from nothing does not pay for it."""
    program = "import sys, meshwright.runtime.launch.worker; "
    program += "print('torch.distributed.checkpoint' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
