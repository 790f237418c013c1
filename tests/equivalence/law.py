"""One case from model to comparison: trace, plan, emit, run on the pool, compare with plain."""

import random
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from equivalence.boxes import ReplicaError, assemble
from equivalence.cases import (
    EACH,
    SOME,
    Case,
    ModelDraw,
    batches,
    random_cuts,
    random_names,
)
from equivalence.clusters import cluster_of
from equivalence.compare import Reading, check
from equivalence.draws import DrawnModel, draw_model
from equivalence.oracle import Outcome, plain_run
from equivalence.pool import Pool
from equivalence.worker import Job, RankResult
from torch import Tensor

from meshwright.api.programs import write_program
from meshwright.ir.capture.export import trace
from meshwright.ir.mesh import compute_mesh
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.remat.options import CHOSEN
from meshwright.planner.remat.rules import SavedSet, candidates, saved_under
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.planner.sharding.chain import ShardedModel, shard_model
from meshwright.planner.sharding.sub_axes import inner_ranks
from meshwright.proof.draws import sites_of

TIMEOUT_S = 60.0
COMPILED_TIMEOUT_S = 900.0
Edit = Callable[[Path], None]
Data = list[tuple[Tensor, Tensor]]


class Court:
    """Runs cases; holds the pool, and the traces by model and dtype."""

    def __init__(self, folder: Path, pool: Pool, cuda: bool = False) -> None:
        """pool: other courts may use it, too. cuda: its ranks on GPUs, by NCCL; the plain model
        stays on the CPU."""
        self.folder, self.pool, self.cuda = folder, pool, cuda
        self.models: dict[ModelDraw, DrawnModel] = {}
        self.traces: dict[tuple[ModelDraw, str, tuple[str, ...]], Traced] = {}
        self.worst: dict[tuple[str, str], tuple[float, str]] = {}

    def try_case(self, case: Case, edit: Edit | None = None) -> list[Reading]:
        """Compare one case; `edit` may change the program's folder before it runs.

        Raises LawError, ReplicaError or PoolError.
        """
        model, plan = self.model(case.model), self.plan(case)
        folder = Path(tempfile.mkdtemp(prefix=f"{case}-", dir=self.folder))
        write_program(plan, folder)
        if edit is not None:
            edit(folder)
        data = batches(case, model.vocab)
        found = self._found(case, plan, folder, data)
        plain = partial(
            plain_run,
            model.plain,
            plan,
            data,
            case,
            drawn_on="cuda" if self.cuda else "cpu",
            sites=sites_of(self.traced(case).graph),
        )
        expected = plain()
        wide = plain(wide=True) if case.dtype == "bf16" else None
        shaken = partial(plain, shaken=True) if case.dtype == "f64" else None
        readings = check(case, found, expected, wide, shaken)
        for reading in readings:
            if edit is None and reading.error <= reading.limit:
                self._remember(case, reading)
        return readings

    def model(self, draw: ModelDraw) -> DrawnModel:
        if draw not in self.models:
            self.models[draw] = draw_model(draw, self.folder / "models")
        return self.models[draw]

    def traced(self, case: Case) -> Traced:
        key = (case.model, case.dtype, case.freeze)
        if key not in self.traces:
            model = self.model(case.model)
            self.traces[key] = trace(model.build, model.name, case.dtype, model.vocab, case.freeze)
        return self.traces[key]

    def plan(self, case: Case) -> Plan:
        traced = self.traced(case)
        pins = Pins(
            pp=case.pp,
            rep=case.rep,
            dp=case.dp,
            cp=case.cp,
            tp=case.tp,
            micro_batch=case.micro_batch,
            zero=case.zero,
            recompute=_recomputed(traced, case),
            schedule=case.schedule,
            outer=case.outer,
            chunks=case.chunks,
            cuts=random_cuts(case, len(traced.segmented.instances)) if case.cuts else None,
            price=case.price,
            shard_weights=1 if case.shard_weights else None,
            precision=case.precision,
            rounding=case.rounding,
            reduce_dtype=case.reduce_dtype,
            cp_order=case.order,
        )
        cluster, sizes = cluster_of(case), {"seq": case.seq, "global_batch": case.global_batch}
        if case.recompute != EACH:
            return make_plan(traced, cluster, **sizes, pins=pins)
        sharded = _sharded(traced, case, cluster)
        kept = _kept(sharded, case)
        return make_plan(traced, cluster, **sizes, pins=pins, sharded=sharded, saved=kept)

    def _found(self, case: Case, plan: Plan, folder: Path, data: Data) -> Outcome:
        steps = [
            (t.numpy(), x.numpy(), rate) for (t, x), rate in zip(data, case.rates, strict=True)
        ]
        limit = COMPILED_TIMEOUT_S if case.compiled else TIMEOUT_S
        options = asdict(case.options)
        job = Job(
            folder,
            case.world,
            steps,
            case.seed,
            options,
            case.compiled,
            limit,
            case.resume,
            self.cuda,
        )
        ranks = self.pool.run(job)
        first = ranks[0]
        for rank in ranks:
            if (rank.losses, rank.norms) != (first.losses, first.norms):
                raise ReplicaError(f"{case}: ranks log different losses or norms")
        pick = partial(assemble, plan, ranks)
        for rank in ranks:
            _check_frozen_grads(plan, rank)
        return Outcome(first.losses, first.norms, pick(_grads, trained=True), pick(_params))

    def _remember(self, case: Case, reading: Reading) -> None:
        key = (case.dtype, reading.kind)
        if reading.error >= self.worst.get(key, (0.0, ""))[0]:
            self.worst[key] = (reading.error, f"{case}: {reading.name}")


def _check_frozen_grads(plan: Plan, rank: RankResult) -> None:
    for bucket in plan.buckets:
        if not bucket.trainable and rank.grads.get(bucket.name, np.empty(0)).size:
            raise ReplicaError(f"{bucket.name} is frozen and has gradients")


def _sharded(traced: Traced, case: Case, cluster: Cluster) -> ShardedModel:
    return shard_model(
        traced.segmented,
        traced.joints,
        mesh=compute_mesh(case.tp, case.cp, inner_ranks(traced.joints.values(), case.tp)),
        cluster=cluster,
        micro_batch=case.micro_batch,
        seq=case.seq,
        num_microbatches=case.accumulation,
        price=case.price,
        shard_matmul_weights=case.shard_weights,
        order=case.order,
    )


def _kept(sharded: ShardedModel, case: Case) -> tuple[SavedSet, ...]:
    """Of every instance what it keeps when half of its ops, drawn anew, may be computed again, and
    a third of that in the host's memory."""
    rng = random.Random(f"kept/{case.seed}/{case.number}")
    away = random.Random(f"offloaded/{case.seed}/{case.number}")
    found = []
    for graph in (sharded.lowered[piece].graph for piece in sharded.instances):
        saved = saved_under(graph, lambda op: rng.random() < 0.5)[0]
        names = [*(i.value.name for i in graph.inputs_of("activation")), *saved]
        found.append(SavedSet(saved, tuple(n for n in names if away.random() < 0.34)))
    return tuple(found)


def _recomputed(traced: Traced, case: Case) -> str:
    if case.recompute == EACH:
        return CHOSEN
    if case.recompute != SOME:
        return case.recompute
    # A loss that tp cuts has other values within.
    values = {name for graph in traced.joints.values() for name in candidates(graph)}
    values = {name for name in values if not name.startswith("loss_")}
    return random_names(case, sorted(values))


def _grads(rank: RankResult) -> dict[str, np.ndarray]:
    return rank.grads


def _params(rank: RankResult) -> dict[str, np.ndarray]:
    return rank.params
