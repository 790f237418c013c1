"""Runs of a plan on full rows of drawn tokens, as the tests of stock classes begin them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from equivalence.boxes import assemble
from equivalence.pool import Pool
from equivalence.worker import Job, RankResult
from torch import Tensor, nn

from meshwright.api.programs import write_program
from meshwright.ir.capture.initialisers import default_dtype
from meshwright.ir.plan import Plan
from meshwright.ir.sizes import evaluate
from meshwright.ir.traced import Traced
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.runtime.engine.initial import initial_value
from meshwright.runtime.optimizers.options import OptimizerOptions

SEQ, ROWS, IGNORED = 8, 4, -100
PLANS = {
    "one": {"micro_batch": 1},
    "dp": {"dp": 2, "micro_batch": 1, "zero": 2, "recompute": "all"},
    "tp": {"tp": 2, "shard_weights": True},
    "pp": {"pp": 2, "micro_batch": 1},
    "cp": {"cp": 2},
    "dp tp": {"dp": 2, "tp": 2, "micro_batch": 1, "zero": 3},
    "pp dp": {"pp": 2, "dp": 2, "micro_batch": 1, "zero": 1},
}


# The same, the sequence cut with storage that is cut, too.
CASES = PLANS | {"cp": {"cp": 2, "zero": 3}}
# What `by_torch` does.
SGD = OptimizerOptions(name="sgd", momentum=0.0, weight_decay=0.0, clip=0.0)


def planned(traced: Traced, pins: dict, seq: int = SEQ) -> Plan:
    """The plan on as many CPU ranks as the pins have, two on each axis."""
    words = {"micro_batch": 2} | pins
    cluster = parse_cluster(f"cpu:{2 ** len(set(words) & {'dp', 'tp', 'pp', 'cp'})}")
    return make_plan(traced, cluster, seq=seq, global_batch=ROWS, pins=Pins(**words))


def tokens_of(step: int, vocab: int, seq: int = SEQ) -> Tensor:
    """Ids [ROWS, seq]."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, vocab, (ROWS, seq), generator=generator)


def labels_of(tokens: Tensor) -> Tensor:
    """The token behind each; none behind the last."""
    return F.pad(tokens[:, 1:], (0, 1), value=IGNORED)


def ran(
    plan: Plan,
    data: Sequence[Tensor],
    options: OptimizerOptions,
    rate: float,
    pool: Pool,
    folder: Path,
) -> list[RankResult]:
    """What each rank of the plan's program has after a step on each of `data`."""
    write_program(plan, folder)
    steps = [(tokens.numpy(), labels_of(tokens).numpy(), rate) for tokens in data]
    return pool.run(Job(folder, plan.mesh.num_devices, steps, 0, asdict(options), False, 60.0))


def by_torch(
    build: Callable[[], nn.Module], plan: Plan, data: Sequence[Tensor], rate: float
) -> tuple[list[float], dict[str, Tensor]]:
    """The losses and the last parameters of plain PyTorch in float64, by SGD without momentum."""
    with default_dtype(torch.float64):
        module = build()
    params = dict(module.named_parameters())
    for param in plan.params:
        shape = tuple(evaluate(size, {}) for size in param.shape)
        where = {"dtype": torch.float64, "device": torch.device("cpu")}
        value = initial_value(param.name, shape, param.init, seed=0, stored={}, **where)
        params[param.name].data.copy_(value)
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    losses = []
    for tokens in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(module(tokens).flatten(0, 1), labels_of(tokens).flatten())
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    return losses, {name: param.detach() for name, param in params.items()}


def check_by_torch(
    build: Callable[[], nn.Module],
    plan: Plan,
    data: Sequence[Tensor],
    rate: float,
    pool: Pool,
    folder: Path,
) -> None:
    """Compare a plan's program with plain PyTorch: losses, and parameters after the last step."""
    found = ran(plan, data, SGD, rate, pool, folder)
    losses, params = by_torch(build, plan, data, rate)
    torch.testing.assert_close(found[0].losses, losses, rtol=1e-11, atol=0)
    own = assemble(plan, found, lambda rank: rank.params)
    assert own.keys() == params.keys()
    for key, value in params.items():
        torch.testing.assert_close(own[key], value, rtol=1e-10, atol=1e-12)
