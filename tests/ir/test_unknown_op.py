"""An op that the table lacks: replicated, named with its line in the coverage, and it runs."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from equivalence.worker import Job, run_rank
from torch import nn

from meshwright.cli import write_program
from meshwright.ir.capture.export import trace
from meshwright.ir.plan import Plan
from meshwright.planner.hardware.cluster import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.runtime.initial import initial_value
from meshwright.runtime.optimizers.options import OptimizerOptions

LINE = "ir/test_unknown_op.py"


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.fc = nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 32, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embed(tokens)
        h = h + torch.cumsum(self.fc(h), dim=1)
        return self.head(h + torch.erf(h))


def _plan(cluster: str, *pins: str) -> Plan:
    traced = trace(Odd, "odd", "f64", 32)
    given = parse_pins(list(pins))
    return make_plan(traced, parse_cluster(cluster), seq=8, global_batch=2, pins=given)


def test_it_is_replicated_and_named_with_its_source_line() -> None:
    plan = _plan("cpu:2", "tp=2", "shard_weights=1")
    for target in ("cumsum", "erf"):
        assert any(target in note and f"{LINE}:" in note for note in plan.coverage), plan.coverage
    made = [(p, op) for p in plan.pieces for op in p.graph.ops if op.target in ("cumsum", "erf")]
    assert len(made) == 3  # cumsum again in its own backward
    for piece, op in made:
        assert all(piece.placements[n].is_replicated("tp") for n in (*op.inputs, op.output.name))


def test_its_program_computes_the_loss_of_the_plain_model(tmp_path: Path) -> None:
    plan = _plan("cpu:1")
    write_program(plan, tmp_path)
    rng = np.random.default_rng(0)
    tokens, labels = rng.integers(0, 32, (2, 2, 8))
    steps = [(tokens, labels, 0.01), (tokens, labels, 0.01)]
    options = asdict(OptimizerOptions())
    result = run_rank(0, Job(tmp_path, 1, steps, 0, options, compiled=False, timeout_s=60.0))
    model = _plain(plan)
    logits = model(torch.from_numpy(tokens)).flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels).flatten())
    assert result.losses[0] == pytest.approx(float(loss.detach()), rel=1e-12)
    assert result.losses[1] < result.losses[0]


def _plain(plan: Plan) -> nn.Module:
    """The module with the weights that the program starts from."""
    model = Odd().double()
    place = {"dtype": torch.float64, "device": torch.device("cpu")}
    with torch.no_grad():
        for param in plan.params:
            shape = param.local_shape(plan.mesh)
            value = initial_value(param.name, shape, param.init, seed=0, **place)
            model.get_parameter(param.name).copy_(value)
    return model
