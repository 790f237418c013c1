"""Norms and rotary embeddings that are a kernel each where nothing is compiled."""

from dataclasses import replace

import pytest
from families import planned

from meshwright.ir.plan import Piece, Plan
from meshwright.planner.cost.phase_work import functions_of
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.software.kernels import Library
from meshwright.planner.software.memory import peak_bytes
from meshwright.planner.software.profile import Software
from meshwright.planner.software.step import model_under

CLUSTER = parse_cluster("h200:1")
EAGER = Software("eager", fused=False)
BOTH = replace(EAGER, library_kernels=("norm", "rope"))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned("tiny-llama", "h200:1", "micro_batch=2", "recompute=none", seq=64)


def piece_of(plan: Plan, name: str) -> Piece:
    return next(piece for piece in plan.pieces if piece.name == name)


def test_a_norm_reads_what_enters_it_and_writes_what_leaves_it(plan: Plan) -> None:
    piece = piece_of(plan, "ffn")
    library, functions = Library(piece.graph, ("norm",)), functions_of(piece.graph, piece.saved)
    forward = {k.writes: set(k.reads) for k in library.kernels(functions.forward)}
    (norm,) = (reads for reads in forward.values() if "ffn_norm_w" in reads)
    assert norm == {"x", "ffn_norm_w"}
    backward = [k for k in library.kernels(functions.backward) if "x" in k.reads]
    assert len(backward) == 2  # the gradient of what enters, and the sums for the weight's


def test_a_rotation_of_heads_is_a_kernel_where_it_is_asked_for(plan: Plan) -> None:
    piece = piece_of(plan, "attention")
    forward = functions_of(piece.graph, piece.saved).forward
    counts = [
        sum(1 for _ in Library(piece.graph, kinds).kernels(forward))
        for kinds in ((), ("norm",), ("norm", "rope"))
    ]
    assert counts[0] > counts[1] > counts[2] == 3  # the residual's sum beside them


def test_kernels_of_a_library_take_less_time_and_keep_what_enters(plan: Plan) -> None:
    units = (model_under(plan, CLUSTER, one).stages[0] for one in (EAGER, BOTH))
    for apart, joined in zip(*units, strict=True):
        for name in ("forward", "backward"):
            us = [getattr(unit.work, name).pointwise_us for unit in (apart, joined)]
            assert us[1] < us[0] if "layers" in apart.name else us[1] <= us[0]
    piece = piece_of(plan, "ffn")
    spared = Library(piece.graph, ("norm",)).spared(piece.saved)
    assert spared and spared < set(piece.saved)
    assert peak_bytes(plan, CLUSTER, BOTH) < peak_bytes(plan, CLUSTER, EAGER)
