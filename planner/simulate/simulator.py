"""A discrete-event run of one training step: compute, collective and copy streams of every pp
rank.

Devices of a pp rank do the same, so one stands for all. Its actions run in order; inside F, B, I
and W the units of a stage run in order, as the emitted loops do:

    compute     functions of units, tp collectives inside them, gradient accumulation
    collective  gathers of the next unit behind the compute of this one, reductions behind the
                next unit's backward; in order of issue, none before the compute that precedes it
    transfers   sends to other ranks, in order per target and kind; receives wait for them
    copies      what a unit offloads goes out behind the forward of the next IN_TRANSIT units, at
                whose end compute waits for it, or at the end of the stage; it comes back behind the
                backward of as many. Out and back are a stream each, as the host link carries both
                at once

Overlap is not free: compute beside a collective takes the cluster's overlap_price of the shared
time longer, and copies take their share of the memory's bandwidth (cost/piece_cost.py).
After the last action come pending reductions, tied gradients, one world-wide all_reduce for the
norm, the optimizer's memory traffic and, for ZeRO 1 and 2, gathering updated parameters.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from meshwright.ir.errors import PlanError
from meshwright.ir.schedule import COMPUTE, Action, peer_stage

from ..pipeline.repeats import Repeats
from ..pipeline.validation import grid
from .skipping import skip
from .step_model import IN_TRANSIT, StepModel, Unit


@dataclass(frozen=True)
class Event:
    """A span of work of a pp rank's stream, from start to end in us.

    stream: compute for actions, collective for gathers and reductions, transfer for sends, copy out
    and copy back.
    """

    rank: int
    action: str
    start_us: float
    end_us: float
    stream: str = "compute"


@dataclass(frozen=True)
class Timeline:
    """The step in us. By pp rank: busy_us, compute of its actions; finish_us, end of the last one;
    exposed_us, compute waiting for gathers and copies inside them. events: of compute, and of the
    other streams where they were asked for."""

    step_us: float
    busy_us: tuple[float, ...]
    finish_us: tuple[float, ...]
    exposed_us: tuple[float, ...]
    events: tuple[Event, ...]

    def bubble_us(self, rank: int) -> float:
        """Return the makespan of the schedule's compute less the rank's own, 0 at least."""
        return max(0.0, max(self.finish_us) - self.busy_us[rank] - self.exposed_us[rank])


@dataclass
class _Stage:
    """The units of a stage, and how long each kind of action is when nothing runs beside it.

    first: the unit that backward ends with; those before it are frozen, and all that is below.
    passes: us of each unit by the kind of action; us: of all of them. completes: by the kind of
    action, whether each unit adds its gradients in it. away_us: of each unit's copy. fetched: by
    unit, those that it fetches in backward, itself and then the nearest first.
    """

    units: tuple[Unit, ...]
    ready: dict[int, float] = field(default_factory=dict)  # gathered units
    left: dict[str, int] = field(default_factory=dict)  # micro-batches still to come, by kind
    # Ends of copies, by unit and micro-batch.
    away: dict[tuple[int, int], float] = field(default_factory=dict)
    back: dict[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = sum(not u.work.runs_backward for u in self.units)
        self.gathers = any(u.gather_us for u in self.units)
        self.away_us = [u.work.away_us for u in self.units]
        self.offloads = any(self.away_us)
        count = len(self.units) * self.offloads
        self.fetched = [_fetched(self.away_us, index) for index in range(count)]
        split = all(u.work.split is not None for u in self.units)
        kinds = ("F", "B", "I", "W") if split else ("F", "B")
        self.passes = {kind: [u.pass_us(kind) for u in self.units] for kind in kinds}
        run = {kind: us if kind == "F" else us[self.first :] for kind, us in self.passes.items()}
        self.us = {kind: sum(us) for kind, us in run.items()}
        self.completes = {kind: [u.completes_in(kind) for u in self.units] for kind in kinds}


def _fetched(away_us: Sequence[float], index: int) -> list[int]:
    """Return the units that one fetches, itself and then the nearest first. away_us: of the copy of
    each, 0 where it offloads nothing."""
    before = range(index, max(-1, index - IN_TRANSIT - 1), -1)
    return [k for k in before if away_us[k]]


@dataclass
class _Rank:
    """State of one pp rank: where its streams stand, in us. log: events of all streams but compute,
    None to keep none."""

    number: int
    stages: dict[int, _Stage]
    log: list[Event] | None
    compute: float = 0.0
    comm: float = 0.0
    busy: float = 0.0
    exposed: float = 0.0
    finish: float = 0.0
    copied_out: float = 0.0
    copied_back: float = 0.0
    leaving: dict[int, float] = field(default_factory=dict)  # ends of copies out, by unit
    traffic: deque = field(default_factory=deque)  # recent (start, end) on the collective stream
    out: dict[tuple[int, str], float] = field(default_factory=dict)  # by target and kind

    def collective(self, us: float, what: str, name: str) -> float:
        """Issue a collective now, of a unit's name; its end."""
        if not us:
            return self.comm
        start = max(self.comm, self.compute)
        self.comm = start + us
        self.traffic.append((start, self.comm))
        if self.log is not None:
            self.note(what.format(name), start, self.comm, "collective")
        return self.comm

    def note(self, what: str, start: float, end: float, stream: str) -> None:
        if self.log is not None:
            self.log.append(Event(self.number, what, start, end, stream))

    def run(self, us: float, price: float) -> None:
        """Compute for `us`, longer beside collectives."""
        start, traffic = self.compute, self.traffic
        end = start + us
        while traffic and traffic[0][1] <= start:
            traffic.popleft()
        if traffic:
            end += price * self._shared_us(start, end)
        self.compute = end
        self.busy += end - start

    def _shared_us(self, start: float, end: float) -> float:
        """Return how long the collective stream is busy meanwhile; all of it ends after start."""
        shared = 0.0
        for s, e in self.traffic:
            if s >= end:
                break
            shared += (e if e < end else end) - (s if s > start else start)
        return shared

    def wait(self, until: float) -> None:
        if until > self.compute:
            self.exposed += until - self.compute
            self.compute = until

    def gather(self, stage: _Stage, index: int) -> None:
        if index in stage.ready or not 0 <= index < len(stage.units):
            return
        unit = stage.units[index]
        if unit.gather_us:
            stage.ready[index] = self.collective(unit.gather_us, "gather {}", unit.name)

    def offload(self, stage: _Stage, index: int, microbatch: int) -> None:
        """After a unit's forward: what those before it offload has left, but of the nearest."""
        if self.leaving:
            nearest = index - IN_TRANSIT if index < len(stage.units) - 1 else index
            for before in [k for k in self.leaving if k <= nearest]:
                self.wait(self.leaving.pop(before))
        if us := stage.away_us[index]:
            start = max(self.copied_out, self.compute)
            self.copied_out = self.leaving[index] = start + us
            stage.away[index, microbatch] = self.copied_out
            if self.log is not None:
                name = stage.units[index].name
                self.note(f"offload {name}", start, self.copied_out, "copy out")

    def fetch(self, stage: _Stage, index: int, microbatch: int) -> None:
        left = stage.away.pop((index, microbatch), None)
        if left is not None:
            start = max(self.copied_back, self.compute, left)
            self.copied_back = stage.back[index, microbatch] = start + stage.away_us[index]
            if self.log is not None:
                name = stage.units[index].name
                self.note(f"fetch {name}", start, self.copied_back, "copy back")

    def bring(self, stage: _Stage, index: int, microbatch: int) -> None:
        """Wait for what a unit offloaded; start to fetch what the next units in backward did."""
        for one in stage.fetched[index]:
            self.fetch(stage, one, microbatch)
            if one == index:
                self.wait(stage.back.pop((index, microbatch), 0.0))


def simulate(
    model: StepModel,
    *,
    streams: bool = False,
    events: bool = True,
    repeats: Repeats | None = None,
) -> Timeline:
    """Run the schedule once. Raises PlanError when it deadlocks.

    streams: whether to give the events of collectives and transfers too. events: whether to give
    any. repeats: of the schedule, some of which are skipped where no events are given.
    """
    run = _Run(model, model.overlap_price, streams, events)
    position = [0] * len(run.ranks)
    if repeats and not events:
        skip(run, repeats, position, partial(_advance, run, position))
    if not _advance(run, position, [len(actions) for actions in model.schedule]):
        raise PlanError(f"the schedule deadlocks:\n{grid(model.schedule, position)}")
    exposed = tuple(r.exposed for r in run.ranks)  # before what the end of the step adds
    busy, finish = (tuple(getattr(r, name) for r in run.ranks) for name in ("busy", "finish"))
    return Timeline(_finish(model, run.ranks), busy, finish, exposed, tuple(run.events))


def _advance(run: "_Run", position: list[int], stops: Sequence[int]) -> bool:
    """Do actions of all ranks up to a number of each; return whether all were done. position: how
    many were done of each, which is moved."""
    moving = True
    while moving:
        moving = False
        for rank, (actions, stop) in enumerate(zip(run.model.schedule, stops, strict=True)):
            while position[rank] < stop and run.act(rank, actions[position[rank]]):
                position[rank] += 1
                moving = True
    return position == list(stops)


class _Run:
    """All ranks, and what is between them. mail: arrival of transfers, by the receive's key."""

    def __init__(self, model: StepModel, price: float, streams: bool, events: bool) -> None:
        self.model, self.price, self.told = model, price, events
        self.events: list[Event] = []
        log = self.events if streams else None
        self.ranks = [_Rank(number, {}, log) for number in range(len(model.schedule))]
        for stage, (units, rank) in enumerate(zip(model.stages, model.stage_ranks, strict=True)):
            self.ranks[rank].stages[stage] = _Stage(
                units, left=dict.fromkeys(COMPUTE, model.num_microbatches)
            )
        self.mail: dict[tuple[int, str, int], float] = {}

    def act(self, rank: int, action: Action) -> bool:
        """Do one action if it can be done; False while what it receives was not sent."""
        here = self.ranks[rank]
        if action.kind in COMPUTE:
            start = here.compute
            self._compute(here, action)
            here.finish = here.compute
            if self.told:
                self.events.append(Event(rank, str(action), start, here.compute))
        elif action.kind.startswith("SEND"):
            self._send(here, action)
        elif action.kind.startswith("RECV"):
            arrival = self.mail.pop((action.stage, action.kind[-1], action.microbatch), None)
            if arrival is None:
                return False
            here.compute = max(here.compute, arrival)
        return True

    def _send(self, rank: _Rank, action: Action) -> None:
        peer = peer_stage(action)
        key = self.model.stage_ranks[peer], action.kind[-1]
        us = self.model.send_us[min(action.stage, peer)]
        start = max(rank.out.get(key, 0.0), rank.compute)
        rank.out[key] = start + us
        if rank.log is not None:
            rank.note(str(action), start, rank.out[key], "transfer")
        self.mail[peer, action.kind[-1], action.microbatch] = rank.out[key]

    def _compute(self, rank: _Rank, action: Action) -> None:
        stage, kind = rank.stages[action.stage], action.kind
        reduces = self._reduces(stage, kind)
        quiet = kind == "W" or not (stage.gathers or stage.offloads)
        if quiet and rank.comm <= rank.compute and not reduces:
            rank.run(stage.us[kind], self.price)
            return
        indices = range(0 if kind == "F" else stage.first, len(stage.units))
        for index in indices if kind == "F" else reversed(indices):
            self._unit(rank, stage, index, action, reduces)

    def _reduces(self, stage: _Stage, kind: str) -> bool:
        """Whether gradients that an action completes are reduced: each time, or after the last."""
        stage.left[kind] -= 1
        return kind != "F" and (self.model.reduces_every_microbatch or not stage.left[kind])

    def _unit(self, rank: _Rank, stage: _Stage, index: int, action: Action, reduces: bool) -> None:
        kind = action.kind
        if kind != "W" and stage.gathers:  # gradients of weights read no weights
            rank.gather(stage, index)
            if kind == "F" or index > stage.first:
                rank.gather(stage, index + (1 if kind == "F" else -1))
            rank.wait(stage.ready.pop(index, 0.0))  # its parameters are there, and freed after it
        if stage.offloads and kind in ("B", "I") and stage.fetched[index]:
            rank.bring(stage, index, action.microbatch)
        rank.run(stage.passes[kind][index], self.price)
        if kind == "F" and (rank.leaving or stage.away_us[index]):
            rank.offload(stage, index, action.microbatch)
        if reduces and stage.completes[kind][index]:
            unit = stage.units[index]
            rank.run(unit.blocking_us, self.price)
            rank.collective(unit.reduce_us, "reduce {}", unit.name)
            if unit.replicas_us and not stage.left[kind]:
                rank.collective(unit.replicas_us, "reduce {} over replicas", unit.name)


def _finish(model: StepModel, ranks: list[_Rank]) -> float:
    """End of the step: reductions, norm, optimizer, refreshed parameters."""
    for rank, tied in zip(ranks, model.tied_us, strict=True):
        rank.wait(max(rank.comm, *rank.out.values(), 0.0))
        rank.compute += tied
    start = max(r.compute for r in ranks) + model.sync_us
    tails = zip(model.optimizer_us, model.refresh_us, strict=True)
    return start + max(optimizer + refresh for optimizer, refresh in tails)
