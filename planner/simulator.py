"""A discrete-event run of one training step: compute and collective streams of every stage.

Ranks of a stage do the same, so one stands for all. Its actions run in order; inside F and B its
units run in order, as the emitted loops do:

    compute     functions of units, tp collectives inside them, gradient accumulation
    collective  gathers of the next unit behind the compute of this one, reductions behind the
                next unit's backward; in order of issue, none before the compute that precedes it
    transfers   sends to neighbours, in order per direction; receives wait for them

Overlap is not free: compute beside a collective takes OVERLAP_PRICE of the shared time longer.
After the last action come pending reductions, tied gradients, one world-wide all_reduce for the
norm, the optimizer's memory traffic and, for ZeRO 1 and 2, gathering updated parameters.
"""

from collections import deque
from dataclasses import dataclass, field

from meshwright.ir.errors import PlanError
from meshwright.ir.schedule import Action

from .schedules import grid
from .step import StepModel, Unit

# Measured on 8 H200, 2026-11-20: 20 matmuls of 8192^3 beside 4 all_gathers of 512 MiB took longer
# by 0.40, 0.31 and 0.43 of the gathers' own time on 2, 4 and 8 ranks.
OVERLAP_PRICE = 0.38


@dataclass(frozen=True)
class Event:
    """An action of a stage from start to end, in us."""

    stage: int
    action: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Timeline:
    """The step in us. busy_us: compute of F and B by stage. finish_us: end of its last action.

    exposed_us: by stage, compute waiting for gathers inside its actions.
    """

    step_us: float
    busy_us: tuple[float, ...]
    finish_us: tuple[float, ...]
    exposed_us: tuple[float, ...]
    events: tuple[Event, ...]

    def bubble_us(self, stage: int) -> float:
        """Makespan of the schedule's compute less the stage's own."""
        return max(self.finish_us) - self.busy_us[stage] - self.exposed_us[stage]


@dataclass
class _Rank:
    """State of one stage: where its streams stand, in us."""

    units: tuple[Unit, ...]
    compute: float = 0.0
    comm: float = 0.0
    busy: float = 0.0
    exposed: float = 0.0
    traffic: deque = field(default_factory=deque)  # recent (start, end) on the collective stream
    ready: dict[int, float] = field(default_factory=dict)  # gathered units
    out: dict[str, float] = field(default_factory=lambda: {"F": 0.0, "B": 0.0})

    def __post_init__(self) -> None:
        self.gathers = any(u.gather_us for u in self.units)
        self.forward_us = sum(u.work.forward.us for u in self.units)
        self.backward_us = sum(u.work.backward.us + u.accumulate_us for u in self.units)

    @property
    def quiet(self) -> bool:
        """Whether its units run back to back, with no collective beside them."""
        return not self.gathers and self.comm <= self.compute

    def collective(self, us: float) -> float:
        """Issue a collective now; its end."""
        if not us:
            return self.comm
        start = max(self.comm, self.compute)
        self.comm = start + us
        self.traffic.append((start, self.comm))
        return self.comm

    def run(self, us: float, price: float) -> None:
        """Compute for `us`, longer beside collectives."""
        start, end = self.compute, self.compute + us
        while self.traffic and self.traffic[0][1] <= start:
            self.traffic.popleft()
        shared = sum(max(0.0, min(e, end) - max(s, start)) for s, e in self.traffic)
        self.compute = end + price * shared
        self.busy += self.compute - start

    def wait(self, until: float) -> None:
        if until > self.compute:
            self.exposed += until - self.compute
            self.compute = until

    def gather(self, index: int) -> None:
        if 0 <= index < len(self.units) and index not in self.ready and self.units[index].gather_us:
            self.ready[index] = self.collective(self.units[index].gather_us)

    def arrive(self, index: int) -> None:
        """Parameters of a unit are there; they are freed after it."""
        self.gather(index)
        self.wait(self.ready.pop(index, 0.0))


def simulate(model: StepModel, price: float = OVERLAP_PRICE) -> Timeline:
    """Run the schedule once. Raises PlanError when it deadlocks."""
    ranks = [_Rank(units) for units in model.stages]
    events: list[Event] = []
    mail: dict[tuple[int, str, int], float] = {}
    position = [0] * len(ranks)
    moving = True
    while moving:
        moving = False
        for stage, rank in enumerate(ranks):
            actions = model.schedule[stage]
            while position[stage] < len(actions):
                if not _act(actions[position[stage]], stage, rank, model, mail, events, price):
                    break
                position[stage] += 1
                moving = True
    if any(p < len(a) for p, a in zip(position, model.schedule, strict=True)):
        raise PlanError(f"the schedule deadlocks:\n{grid(model.schedule, position)}")
    exposed = tuple(r.exposed for r in ranks)
    finish = tuple(max((e.end_us for e in events if e.stage == s), default=0.0)
                   for s in range(len(ranks)))  # fmt: skip
    return Timeline(
        _finish(model, ranks),
        tuple(r.busy for r in ranks),
        finish,
        exposed,
        tuple(events),
    )


def _act(
    action: Action, stage: int, rank: _Rank, model: StepModel,
    mail: dict[tuple[int, str, int], float], events: list[Event], price: float,
) -> bool:  # fmt: skip
    """Do one action if it can be done; False while what it receives was not sent."""
    kind, microbatch = action.kind, action.microbatch
    if kind.startswith("RECV"):
        arrival = mail.pop((stage, kind[-1], microbatch), None)
        if arrival is None:
            return False
        rank.compute = max(rank.compute, arrival)
    elif kind.startswith("SEND"):
        forward = kind[-1] == "F"
        us = model.send_us[stage if forward else stage - 1]
        rank.out[kind[-1]] = max(rank.out[kind[-1]], rank.compute) + us
        mail[stage + 1 if forward else stage - 1, kind[-1], microbatch] = rank.out[kind[-1]]
    elif kind in ("F", "B"):
        start = rank.compute
        if kind == "F":
            _forward(rank, price)
        else:
            _backward(rank, model, microbatch == model.num_microbatches - 1, price)
        events.append(Event(stage, str(action), start, rank.compute))
    return True


def _forward(rank: _Rank, price: float) -> None:
    if rank.quiet:
        rank.run(rank.forward_us, price)
        return
    for index, unit in enumerate(rank.units):
        rank.gather(index)
        rank.gather(index + 1)
        rank.arrive(index)
        rank.run(unit.work.forward.us, price)


def _backward(rank: _Rank, model: StepModel, last: bool, price: float) -> None:
    reduces = model.reduces_every_microbatch or last
    if rank.quiet and not reduces:
        rank.run(rank.backward_us, price)
        return
    for index in reversed(range(len(rank.units))):
        unit = rank.units[index]
        rank.gather(index)
        rank.gather(index - 1)
        rank.arrive(index)
        rank.run(unit.work.backward.us + unit.accumulate_us, price)
        if reduces:
            rank.run(unit.partial_us, price)
            rank.collective(unit.reduce_us)


def _finish(model: StepModel, ranks: list[_Rank]) -> float:
    """End of the step: reductions, norm, optimizer, refreshed parameters."""
    for rank, tied in zip(ranks, model.tied_us, strict=True):
        rank.wait(max(rank.comm, *rank.out.values()))
        rank.compute += tied
    start = max(r.compute for r in ranks) + model.sync_us
    tails = zip(model.optimizer_us, model.refresh_us, strict=True)
    return start + max(optimizer + refresh for optimizer, refresh in tails)
