"""Use every addition of docs/extending.md: run by a test in a copy of the tree that has them all.

    python additions.py FOLDER

prints a JSON object: by section "" or the traceback of what failed. FOLDER takes what is written.
"""

import importlib.util
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from equivalence.boxes import assemble
from equivalence.cases import Case, ModelDraw, batches
from equivalence.compare import check
from equivalence.oracle import Outcome, plain_run
from equivalence.pool import Pool
from equivalence.worker import Job, RankResult, run_rank
from torch import Tensor, nn

import meshwright
from meshwright.api.programs import write_program
from meshwright.ir import mesh as ir_mesh
from meshwright.ir.capture.export import trace
from meshwright.ir.plan import Plan
from meshwright.ir.text.plan_text import format_plan, parse_plan
from meshwright.ir.traced import Traced
from meshwright.planner.hardware.cluster_file import (
    format_cluster,
    parse_cluster,
    parse_cluster_text,
)
from meshwright.planner.pipeline.schedules import in_flight, make_schedule
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.planner.simulate.predict import predict
from meshwright.runtime.data import open_corpus, open_reader

TESTS, FOLDER = Path(__file__).parents[1], Path(sys.argv[1])
DIM, VOCAB, SEQ, ROWS = 8, 32, 6, 4
Activation = Callable[[Tensor], Tensor]


class Layer(nn.Module):
    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(DIM, DIM, bias=False) for _ in range(2))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.activation(self.up(x)))


class Tiny(nn.Module):
    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.Sequential(Layer(activation), Layer(activation))
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.layers(self.embed(tokens)))


@cache
def traced(activation: Activation) -> Traced:
    return trace(partial(Tiny, activation), "tiny", "f64", VOCAB)


def planned(activation: Activation, cluster: str, *pins: str) -> Plan:
    sizes = {"seq": SEQ, "global_batch": ROWS}
    found = parse_pins(list(pins))
    return make_plan(traced(activation), parse_cluster(cluster), **sizes, pins=found)


def obeys_the_law(activation: Activation, plain: Activation, **changes: Any) -> None:
    """Compare a plan for one device, run, with the plain model: loss, gradients, weights."""
    draw = ModelDraw("tiny", stock=False, variant=0, seed=0)
    case = Case(number=0, seed=0, model=draw, seq=SEQ, micro_batch=ROWS, **changes)
    plan = planned(activation, "cpu:1")
    compare(plan, case, plain, lambda job: [run_rank(0, job)])


def compare(
    plan: Plan, case: Case, plain: Activation, run: Callable[[Job], list[RankResult]]
) -> None:
    folder = FOLDER / f"{plain.__name__}-{case.optimizer}-{case.world}"
    write_program(plan, folder)
    data = batches(case, VOCAB)
    steps = [(x.numpy(), y.numpy(), r) for (x, y), r in zip(data, case.rates, strict=True)]
    ranks = run(Job(folder, case.world, steps, case.seed, asdict(case.options), False, 60.0))
    grads = assemble(plan, ranks, lambda r: r.grads, trained=True)
    params = assemble(plan, ranks, lambda r: r.params)
    found = Outcome(ranks[0].losses, ranks[0].norms, grads, params)
    check(case, found, plain_run(partial(Tiny, plain), plan, data, case))


def tests_of(name: str) -> ModuleType:
    """A test file of the copy, whose functions are called by name."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, TESTS / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def registry_tests() -> tuple[ModuleType, ModuleType]:
    # The families are traced by other tests of the file, and would take half a minute.
    sys.modules["families"] = SimpleNamespace(OURS=(), STOCK=(), traced=None)  # type: ignore[assignment]
    return tests_of("ir/test_registry.py"), tests_of("ir/test_op_numbers.py")


def is_defined(name: str) -> None:
    registry, numbers = registry_tests()
    registry.test_semantic_ops_are_the_kernels_and_the_declared_ones()
    registry.test_every_definition_has_an_emitter_and_no_emitter_is_left_over()
    numbers.test_each_definition_has_a_case()
    numbers.test_emitted_text_equals_eager(name)
    numbers.test_factors_fit_the_shapes(name)


def emits(name: str, text: str) -> None:
    (stage,) = FOLDER.glob(f"{name}-*/stage_00.py")
    assert text in stage.read_text()


def op() -> None:
    is_defined("erf")
    obeys_the_law(torch.erf, torch.erf)
    emits("erf", "torch.erf(")


def squared_relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x * x, 0.0)


def kernel() -> None:
    is_defined("mw.squared_relu")
    obeys_the_law(torch.ops.meshwright.squared_relu, squared_relu)
    emits("squared_relu", "kernels.squared_relu(")


def optimizer() -> None:
    obeys_the_law(torch.tanh, torch.tanh, optimizer="signum", steps=4)
    assert "signum" in format_plan(planned(torch.tanh, "cpu:1", "optimizer=signum"))


def source() -> None:
    tokens = np.arange(400, dtype=np.uint16) % VOCAB
    np.save(FOLDER / "tokens.npy", tokens)
    name = f"npy:{FOLDER / 'tokens.npy'}"
    reader = open_reader(name, global_batch=ROWS, seq=SEQ, seed=0, vocab=VOCAB)
    batch = reader.rows(0, 1, ROWS)
    assert batch.tokens.shape == (ROWS - 1, SEQ) and batch.label_count == ROWS * SEQ
    assert torch.equal(batch.labels, (batch.tokens + 1) % VOCAB)
    train, held_out = (open_corpus(name, split) for split in ("train", "held-out"))
    assert (train.length, held_out.length) == (380, 20) and train.vocab == VOCAB
    assert held_out.read(0, 3).tolist() == tokens[380:383].tolist()


def device() -> None:
    cluster = parse_cluster("l4:4")
    assert cluster.num_devices == 4
    assert parse_cluster_text(format_cluster(cluster)) == cluster
    tests = tests_of("planner/test_cluster.py")
    tests.test_every_figure_of_the_catalogue_says_where_it_is_from("l4")
    plan = planned(torch.tanh, "l4:2", "tp=2")
    assert 0 < predict(plan, parse_cluster("l4:2")).step_us


def schedule() -> None:
    name = "eager-1f1b"
    held = [in_flight(actions) for actions in make_schedule(name, 4, 8)]
    assert held == [7, 5, 3, 1]
    tests = tests_of("runtime/test_schedules.py")
    for sizes in [(2, 2), (2, 4), (3, 9), (4, 4), (5, 20)]:
        tests.test_every_stage_does_each_micro_batch_once_and_transfers_match(name, *sizes)
    plan = planned(torch.tanh, "cpu:2", "pp=2", "micro_batch=1", f"schedule={name}")
    assert "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0RECV_B0 0B0" in format_plan(plan)
    assert parse_plan(format_plan(plan)) == plan
    assert 0 < predict(plan, parse_cluster("cpu:2")).step_us


def axis() -> None:
    tests_of("runtime/test_mesh.py").test_roles_are_those_of_the_ir()
    made = ir_mesh.parse_mesh("pp=1 rep=2 rq=3 dp=2 tp=1")
    assert str(made) == "pp=1 rep=2 rq=3 dp=2 tp=1" and ir_mesh.parse_mesh(str(made)) == made
    assert made.count(*ir_mesh.BATCH) == made.num_devices == 12
    assert made.names(ir_mesh.REPLICA) == ("rep", "rq")
    assert ir_mesh.reordered(made, ir_mesh.DATA).axes[:3] == (("rep", 2), ("rq", 3), ("dp", 2))
    assert str(ir_mesh.make_mesh({ir_mesh.REPLICA: 2})) == "pp=1 rep=2 dp=1 tp=1"
    _ranks_along_it_obey_the_law()


def _ranks_along_it_obey_the_law() -> None:
    """Run a plan for two data-parallel ranks on a mesh where the new axis has them."""
    draw = ModelDraw("tiny", stock=False, variant=0, seed=0)
    case = Case(number=0, seed=0, model=draw, seq=SEQ, micro_batch=ROWS // 2, dp=2, steps=2)
    plan = planned(torch.tanh, "cpu:2", "dp=2", "zero=0")
    moved = replace(plan, mesh=ir_mesh.parse_mesh("pp=1 rq=2 dp=1 tp=1"))
    pool = Pool()
    try:
        compare(moved, case, torch.tanh, pool.run)
    finally:
        pool.stop()


SECTIONS = (op, kernel, optimizer, source, device, schedule, axis)


def outcome(use: Callable[[], None]) -> str:
    try:
        use()
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    copy = Path(meshwright.__file__).resolve().parent
    assert copy == TESTS.resolve().parent, f"imported {copy}"
    torch.set_num_threads(1)
    print(json.dumps({use.__name__: outcome(use) for use in SECTIONS}))
