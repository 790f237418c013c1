"""Memory of one rank at every action of its schedule and every unit in it, by kind.

A rank holds its parameters, gradients and optimizer state for good. Beside them live, at a unit k
of micro-batch j: what the other micro-batches in flight kept, what this one kept up to k, what k's
function has alive, and the gathered and reduced buckets around k. Where backward runs in two, what
I hands to W lives between them. The unit where a stage's F, B, I or W peaks does not depend on what
the rest of the rank holds, so the walk goes over actions alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.graph import Graph, Value
from meshwright.ir.inputs import StepInput
from meshwright.ir.mesh import REDUCED, STORAGE, Mesh
from meshwright.ir.plan import Plan
from meshwright.ir.schedule import COMPUTE, Action
from meshwright.ir.sizes import evaluate, num_elements

from ..pipeline.computing import Computing, computing_of
from ..pipeline.schedules import most_held
from .beside import Beside, beside
from .step_model import (
    IN_TRANSIT,
    Precision,
    StepModel,
    Unit,
    frozen_share,
    precision_of_plan,
)

WORKSPACE_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Peak:
    """The peak of a rank: bytes by kind, and the unit where it occurs."""

    bytes_by_kind: tuple[tuple[str, float], ...]
    where: str

    @property
    def total_bytes(self) -> float:
        return sum(size for _, size in self.bytes_by_kind)


@dataclass(frozen=True)
class Storage:
    """Bytes of a rank's buckets, and how the ZeRO level cuts them over the mesh.

    bucket_bytes: as units own them, frozen parameters for their share. beside_bytes: the largest
    `Beside.mean`, of units that follow each other. frozen_bytes: those in full.
    """

    bucket_bytes: float
    beside_bytes: float
    mesh: Mesh
    zero: int
    precision: Precision
    frozen_bytes: float = 0.0

    def by_kind(self) -> dict[str, float]:
        cut = [1 if self.zero < level else self.mesh.count(*STORAGE) for level in (3, 2, 1)]
        wide = self.precision.grad / self.precision.param
        trained = self.bucket_bytes
        if self.frozen_bytes:
            trained -= self.frozen_bytes * frozen_share(self.mesh, self.zero, self.precision)
        found = {
            "parameters": (trained + self.frozen_bytes) / cut[0],
            "gradients": trained * wide / cut[1],
            "optimizer": trained * self.precision.state / self.precision.param / cut[2],
        }
        if self.mesh.count(*STORAGE) > 1 and self.zero == 3:
            found["gathered parameters"] = 2 * self.beside_bytes
        if size := self._buffer_bytes():
            found["gradient buffers"] = size
        return found

    def _buffer_bytes(self) -> float:
        """Gradients on their way: a reduction runs behind each backward until the next one begins.

        Levels 2 and 3 sum in buffers, beside which a copy travels where it has another dtype.
        """
        grad, carried = self.precision.grad, self.precision.carried
        item = grad if self.zero >= 2 else 0
        if self.mesh.count(*REDUCED) > 1 and self.precision.copies:
            item += carried
        return 2 * item / self.precision.param * self.beside_bytes

    @property
    def total_bytes(self) -> float:
        return sum(self.by_kind().values())


class Moment(NamedTuple):
    """The peak of a kind of action. live: bytes of its own micro-batch, passing: of the function
    that is running. unit: the name of its unit."""

    live_bytes: float
    passing_bytes: float
    kind: str
    unit: str

    @property
    def total_bytes(self) -> float:
        return self.live_bytes + self.passing_bytes

    def beside(self, others: float) -> "Moment":
        """Return the moment with bytes of other micro-batches: `_replace` takes thrice as long."""
        return Moment(others + self.live_bytes, self.passing_bytes, self.kind, self.unit)

    @property
    def where(self) -> str:
        """Return the action and the unit in words."""
        return f"{_WORDS[self.kind]} of {self.unit}"


@dataclass
class StageMemory:
    """Bytes that a stage holds of micro-batches, as units are added to it in order.

    Of one micro-batch: kept_bytes from F to B or I, away_bytes in the host's memory meanwhile,
    handed_bytes from I to W. Beside a unit in forward is what the IN_TRANSIT before it offload,
    which is leaving; in backward what itself and those before it offload, which is back.
    """

    split: bool = False
    bucket_bytes: float = 0.0
    beside_units: Beside = field(default_factory=Beside)
    kept_bytes: float = 0.0
    handed_bytes: float = 0.0
    away_bytes: float = 0.0
    near: tuple[float, ...] = (0.0,) * IN_TRANSIT  # bytes that the last units offload
    _seen: dict[str, list[Any]] = field(default_factory=dict)  # the fields of moments, by kind

    @property
    def moments(self) -> dict[str, Moment]:
        """Return the peak of every kind of action."""
        return {kind: self.moment(kind) for kind in self._seen}

    def moment(self, kind: str) -> Moment:
        """Return the peak of a kind of action."""
        live, passing, unit = self._seen[kind]
        return Moment(live, passing, kind, unit)

    def add(self, unit: Unit) -> None:
        work, leaving = unit.work, sum(self.near)
        before = self.kept_bytes + leaving
        self._see("F", before + work.entry_bytes, work.forward.peak_bytes, unit)
        self.kept_bytes += work.kept_bytes
        self.away_bytes += work.away_bytes
        self.near = (*self.near[1:], work.away_bytes)
        fetched = self.kept_bytes + work.away_bytes + leaving
        if self.split:
            assert work.split is not None, unit.name
            self._hand(work.split.handed_bytes)
            self.handed_bytes += work.split.handed_bytes
            self._see("I", fetched, work.split.input_grad.peak_bytes, unit)
            self._see("W", self.handed_bytes, work.split.weight_grad.peak_bytes, unit)
        else:
            self._see("B", fetched, work.backward.peak_bytes, unit)
        self.bucket_bytes += unit.owned_bytes
        self.beside_units.add(unit.bucket_bytes)

    def _hand(self, size: float) -> None:
        """Add what a later unit's I hands over to the I of earlier units, which run after it."""
        if before := self._seen.get("I"):
            before[0] += size

    def _see(self, kind: str, live: float, passing: float, unit: Unit) -> None:
        best = self._seen.get(kind)
        if best is None or live + passing > best[0] + best[1]:
            self._seen[kind] = [live, passing, unit.name]

    def changes(self, kind: str) -> tuple[float, float, float]:
        """Return how bytes of other micro-batches change before an action of a kind, its own peak,
        and how they change after it."""
        live, passing, _ = self._seen[kind]
        if kind == "F":
            return 0.0, live + passing, self.kept_bytes
        if kind == "W":
            return -self.handed_bytes, live + passing, 0.0
        return -self.kept_bytes, live + passing, self.handed_bytes if kind == "I" else 0.0

    def peak(self, held: int, waiting: int) -> Moment:
        """Return the peak, `held` micro-batches between F and B or I, and `waiting` for W."""
        kept, handed = held * self.kept_bytes, waiting * self.handed_bytes
        beside = {
            "F": kept - self.kept_bytes + handed,
            "B": kept - self.kept_bytes,
            "I": kept - self.kept_bytes + handed,
            "W": kept + handed - self.handed_bytes,
        }
        totals = {k: s[0] + s[1] + max(0.0, beside[k]) for k, s in self._seen.items()}
        kind = max(totals, key=totals.__getitem__)
        return self.moment(kind).beside(max(0.0, beside[kind]))


_WORDS = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}


def memory_of_units(units: Iterable[Unit], split: bool) -> StageMemory:
    found = StageMemory(split)
    for unit in units:
        found.add(unit)
    return found


def moments(
    actions: tuple[Action, ...], stages: dict[int, StageMemory]
) -> Iterator[tuple[Action, Moment, float]]:
    """Every compute action of a rank's schedule, its peak, and what is live after it;
    stages: those the rank holds."""
    others = 0.0
    for action in actions:
        if action.kind not in COMPUTE:
            continue
        stage, kind = stages[action.stage], action.kind
        others -= {"F": 0.0, "W": stage.handed_bytes}.get(kind, stage.kept_bytes)
        peak = stage.moment(kind).beside(others)
        others += {"F": stage.kept_bytes, "I": stage.handed_bytes}.get(kind, 0.0)
        yield action, peak, others


def walk(computing: Computing, stages: dict[int, StageMemory]) -> Moment:
    """Return the peak of a rank's schedule, the first of equals."""
    changes = np.array([stages[stage].changes(kind) for stage, kind in computing.ways])
    before, total, after = changes.T[:, computing.numbers]
    both = np.empty(2 * len(before))
    both[::2], both[1::2] = before, after
    others = both.cumsum()[::2]
    at = int((others + total).argmax())
    stage, kind = computing.ways[computing.numbers[at]]
    return stages[stage].moment(kind).beside(float(others[at]))


def stage_memories(model: StepModel, rank: int, split: bool) -> dict[int, StageMemory]:
    """The stages that a rank holds. split: whether backward runs in two."""
    pairs = enumerate(zip(model.stages, model.stage_ranks, strict=True))
    return {s: memory_of_units(units, split) for s, (units, home) in pairs if home == rank}


def rank_peak(
    model: StepModel,
    rank: int,
    storage: Storage,
    context: float,
    workspaces: float = 0.0,
    computing: Computing | None = None,
) -> Peak:
    """The peak of a rank. context: bytes given to all. workspaces: bytes of its matmuls. computing:
    its actions, where they are known."""
    computing = computing or computing_of(model.schedule[rank])
    split = any(kind == "W" for _, kind in computing.ways)
    moment = walk(computing, stage_memories(model, rank, split))
    kinds = storage.by_kind() | {
        "activations": moment.live_bytes,
        "temporaries": moment.passing_bytes,
        "context and data": context,
        **({"matmul workspaces": workspaces} if workspaces else {}),
    }
    return Peak(tuple(kinds.items()), moment.where)


def host_bytes(model: StepModel, rank: int, held: Sequence[tuple[int, int]] = ()) -> float:
    """Return what a rank offloads at most, if its stages peak at once. held: `most_held` of every
    stage, where it is known."""
    homes = enumerate(zip(model.stages, model.stage_ranks, strict=True))
    away = {s: sum(u.work.away_bytes for u in units) for s, (units, home) in homes if home == rank}
    actions = model.schedule[rank]
    counts = {s: held[s] if held else most_held(actions, s) for s, size in away.items() if size}
    return sum(kept * away[s] for s, (kept, _) in counts.items())


def model_peaks(
    model: StepModel,
    mesh: Mesh,
    precision: Precision,
    context: float,
    workspaces: float = 0.0,
    computing: Sequence[Computing] = (),
) -> tuple[Peak, ...]:
    """The peak of every rank. computing: as for `rank_peak`, by rank."""
    peaks = []
    for rank in range(len(model.schedule)):
        mine = [s for s, home in enumerate(model.stage_ranks) if home == rank]
        units = [u for s in mine for u in model.stages[s]]
        stored = sum(u.owned_bytes for u in units)
        frozen = sum(u.frozen_bytes for u in units)
        moving = beside(u.bucket_bytes for u in units)
        storage = Storage(stored, moving, mesh, model.zero, precision, frozen)
        known = computing[rank] if computing else None
        peaks.append(rank_peak(model, rank, storage, context, workspaces, known))
    return tuple(peaks)


def plan_peaks(plan: Plan, model: StepModel) -> tuple[Peak, ...]:
    """The peak of every rank of a plan; model: the plan on any cluster, bytes know no rates."""
    context = context_bytes(plan.context, plan.inputs, plan.sizes, plan.num_microbatches)
    workspaces = workspace_bytes(plan.device_type, plan.replays)
    return model_peaks(model, plan.mesh, precision_of_plan(plan), context, workspaces)


def workspace_bytes(device_type: str, recorded: bool) -> float:
    """Return what matmuls hold for themselves: one workspace a stream, of which a recording is one.

    Source: torch takes what cuBLAS recommends for Hopper (cublasSetWorkspace), other devices less.
    """
    return (WORKSPACE_BYTES * (1 + recorded)) if device_type == "cuda" else 0.0


def context_bytes(
    context: Graph, inputs: tuple[StepInput, ...], sizes: dict[str, int], num_microbatches: int
) -> float:
    """Return bytes of what every unit is given: rotary tables and the like, and a step's inputs.

    sizes: B and S of a micro-batch. Scalars are not counted.
    """

    def size(value: Value | StepInput) -> float:
        return evaluate(num_elements(value.shape), sizes) * ITEM_BYTES[value.dtype]

    given = sum(size(context.values[name]) for name in context.outputs)
    return given + num_microbatches * sum(size(item) for item in inputs if item.shape)
