"""The executor: runs this rank's list of actions for one step.

The emitted stage files hold the functions and the loops over instances (stage.py says what those
call back for). Actions are (kind, stage, micro-batch) tuples.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from . import collectives, mesh
from .agreement import Agreement
from .boundary import Crossing, crossing_like, values_of
from .buckets import FlatBucket
from .layout import Layout
from .p2p import SENDS_IN_FLIGHT, Transfers
from .replay import Call, Recorder, Recordings, Replay, ScheduleReplay, cuda_graphs
from .router_loads import RouterLoads
from .schedule_recorder import ScheduleRecorder
from .stage import Batch, Stage, Step

__all__ = ["KINDS", "SENDS_IN_FLIGHT", "Batch", "Executor"]

KINDS = ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "STEP")
Action = tuple[str, int, int]


class Update(Protocol):
    """The optimizer, as the executor calls it once a step."""

    def squares(self) -> Tensor:
        """Return this rank's share of the squared gradient norm, 0-dim."""
        ...

    def step(self, loss: float, norm: float, lr: float) -> None: ...


class Marks(Protocol):
    """Receiver of notes of what this rank is about to do."""

    def mark(self, kind: str, stage: int = 0, microbatch: int = -1) -> None: ...


class NoMarks:
    """Marks that go nowhere."""

    def mark(self, kind: str, stage: int = 0, microbatch: int = -1) -> None:
        pass


U = TypeVar("U", bound=Update)


class Executor(Generic[U]):
    """State of one rank: buckets, stages, what passes between stages.

    agreement: what its ranks learn of in each step. beacon: marked before each action. replay: its
    recordings, None where the plan has none.
    """

    def __init__(
        self,
        stages: dict[int, Stage],
        schedule: tuple[Action, ...],
        layout: Layout,
        buckets: dict[str, FlatBucket],
        optimizer: U,
    ) -> None:
        """stages: of this rank, in order of the model. buckets: of these stages."""
        self.schedule, self.layout, self.device = schedule, layout, mesh.device()
        self.last = len(layout.stage_ranks) - 1
        self.sequence_dims = {i.role: i.sequence_dim for i in layout.inputs}
        self.stages, self.buckets, self.optimizer = stages, buckets, optimizer
        self._expect_reductions()
        self.tied = {b.name: mesh.homes_group(b.homes) for b in layout.buckets if len(b.homes) > 1}
        self.agreement = Agreement()
        self.beacon: Marks = NoMarks()
        self.transfers = Transfers(layout.stage_ranks)
        self._rehearsed = self.last == 0
        double = layout.dtype == "float64"
        self._denominator_dtype = torch.float64 if double else torch.float32
        self._loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self.replay = self._recordings() if layout.replays else None
        self._outstanding = False  # whether recordings of this step may still run
        self._begin([], 1, training=True)

    def _recordings(self) -> Recordings | None:
        if self.device.type != "cuda":
            return None
        if self.last == 0 and self._alternates:
            return Replay(self._issue, cuda_graphs, alike=mesh.world() == 1)
        return ScheduleReplay(self._record_step, cuda_graphs)

    @property
    def _alternates(self) -> bool:
        """Return whether each micro-batch's backward follows its forward."""
        kinds = [kind for kind, _, _ in self.schedule[:-1]]
        return kinds == ["F", "B"] * self.layout.num_microbatches

    def _own_part(self, role: str, x: Tensor) -> Tensor:
        """The part of an input's sequence that this rank holds."""
        dim = self.sequence_dims[role]
        if dim is None:
            return x
        place, ranks = mesh.index(*mesh.CONTEXT), mesh.count(*mesh.CONTEXT)
        return collectives.shard(x, dim, 1, place, ranks, self.layout.mirrored)

    def _expect_reductions(self) -> None:
        """A bucket is whole once every stage that completes it did so for every micro-batch."""
        for stage in self.stages.values():
            for item in stage.instances:
                for name in item.reduces:
                    self.buckets[name].expected += self.layout.num_microbatches

    def _begin(self, batches: list[Batch], label_count: int, training: bool) -> None:
        kind, device = self._denominator_dtype, self.device
        denominator = torch.full((), float(label_count), dtype=kind, device=device)
        own = [{r: self._own_part(r, x) for r, x in batch.items()} for batch in batches]
        self._now = Step([{**batch, "denominator": denominator} for batch in own], training)
        for stage in self.stages.values():
            stage.begin(self._now)
        for bucket in self.buckets.values():
            bucket.begin()
        # By (stage, micro-batch): inputs, and gradients of outputs, that wait for their action;
        # outputs, and gradients of inputs, that wait to be sent.
        self._inputs: dict[tuple[int, int], Crossing] = {}
        self._output_grads: dict[tuple[int, int], Crossing | None] = {}
        self.outgoing: dict[tuple[str, int, int], Crossing] = {}
        self._loss.zero_()
        self._loads = RouterLoads()

    @torch.no_grad()
    def train_step(self, batches: list[Batch], label_count: int, lr: float) -> tuple[float, float]:
        """Run the schedule once over this rank's micro-batches.

        batches: what each micro-batch gives by role, tokens and labels [micro_batch, seq] among
        it, on the device. label_count: unignored labels of the whole global batch.
        Returns (loss, gradient norm before clipping).
        Raises ValueError when the batch holds no label at all.
        """
        if label_count == 0:
            raise ValueError("the global batch has 0 labels that count; its loss is not defined")
        if not self._rehearsed:
            self._rehearse(batches, label_count)
        self._begin(batches, label_count, training=True)
        self._outstanding = self.replay is not None and self._replayed(self.replay)
        if self._outstanding:
            return self._step_behind_recordings(lr)
        if self.replay is not None:
            for bucket in self.buckets.values():
                bucket.forget()
            self._begin(batches, label_count, training=True)
        result = (0.0, 0.0)
        for kind, stage, microbatch in self.schedule:
            with self.at(kind, stage, microbatch):
                if kind == "STEP":
                    result = self._step(lr)
                else:
                    self.run_action(kind, stage, microbatch)
        return result

    @contextmanager
    def at(self, kind: str, stage: int, microbatch: int) -> Iterator[None]:
        """Mark an action before it is issued, and name it in what it raises."""
        self.beacon.mark(kind, max(stage, min(self.stages)), microbatch)
        try:
            yield
        except Exception as error:
            error.add_note(f"rank {_rank()}, stage {stage}, action {kind} {microbatch}")
            raise

    def _step_behind_recordings(self, lr: float) -> tuple[float, float]:
        assert self.replay is not None
        with self.at("STEP", -1, -1):
            found = self._step(lr)
        if self.agreement.unrecorded.anywhere:  # NCCL's calls are recorded on all ranks or on none
            self.replay.stop("another rank could not record")
        return found

    def _replayed(self, replay: Recordings) -> bool:
        """Issue the micro-batches as recorded; return whether they could be."""
        self.beacon.mark("REPLAY", min(self.stages))
        return replay.run(self._now.batches)

    def _issue(self, batch: Batch, last: bool) -> None:
        """Run forward and backward of a micro-batch, and all reductions to their end. last: it is a
        step's last. The rank holds the whole model."""
        count, step = self.layout.num_microbatches, Step([batch], training=True)
        for bucket in self.buckets.values():
            bucket.begin(bucket.expected // count * (count - 1) if last else 0)
        for stage, here in self.stages.items():
            here.step = step
            self._forward(stage, 0)
        for stage in reversed(self.stages):
            self._backward("B", stage, 0)
        for bucket in self.buckets.values():
            bucket.finish()

    def _record_step(self, batches: list[Batch], record: Recorder) -> list[Call]:
        """Record each action of the schedule; return what issues it again, in order."""
        for stage in self.stages.values():
            stage.step = Step(batches, training=True)
        recorder = ScheduleRecorder(self, record)
        return [recorder.recorded(*action) for action in self.schedule if action[0] != "STEP"]

    def _rehearse(self, batches: list[Batch], label_count: int) -> None:
        """Run every function of this rank once, on zeros where another rank's values come in, and
        open the channels, before ranks wait for each other.

        What is first used compiles, times variants and loads kernels, and CUDA may wait for all
        that runs on the device before it loads one: for a send, too, whose receiver comes later
        only. In a V its receiver may wait for this very rank (seen on four H200s: the first sum of
        losses, in a kernel not loaded yet, beside a send under way).
        """
        self.beacon.mark("REHEARSE", min(self.stages))
        self._begin(batches, label_count, training=True)
        for bucket in self.buckets.values():
            bucket.completed = bucket.expected  # so that every reduction is due
        kinds = ("I", "W") if any(kind == "I" for kind, _, _ in self.schedule) else ("B",)
        for stage in self.stages:
            self._rehearse_stage(stage, kinds)
            self.stages[stage].host.reserve(self._most_held(stage))
        for bucket in self.buckets.values():
            bucket.finish()
            bucket.zero_grads()
        self.transfers.open()
        self._rehearsed = True

    def _rehearse_stage(self, stage: int, kinds: tuple[str, ...]) -> None:
        module = self.stages[stage].module
        if stage > 0:
            self._inputs[stage, 0] = crossing_like(module.ENTRY, self._zeros)
        self._forward(stage, 0)
        if stage < self.last:
            self._output_grads[stage, 0] = crossing_like(module.EXIT, self._zeros)
        for kind in kinds:
            self.run_action(kind, stage, 0)

    def _most_held(self, stage: int) -> int:
        """Micro-batches of a stage between forward and backward, at most."""
        held = most = 0
        for kind, at, _ in self.schedule:
            if at == stage:
                held += {"F": 1, "B": -1, "I": -1}.get(kind, 0)
                most = max(most, held)
        return most

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def run_action(self, kind: str, stage: int, microbatch: int) -> None:
        if kind == "F":
            self._forward(stage, microbatch)
        elif kind in ("B", "I"):
            self._backward(kind, stage, microbatch)
        elif kind == "W":
            here = self.stages[stage]
            here.module.weight_grad(here, microbatch)
        elif kind.startswith("SEND"):
            self._send(kind[-1], stage, microbatch)
        else:
            self._receive(kind[-1], stage, microbatch)

    def _forward(self, stage: int, microbatch: int) -> None:
        here = self.stages[stage]
        out = here.module.forward(here, microbatch, self._inputs.pop((stage, microbatch), None))
        if stage == self.last:
            loss, *load = values_of(out)
            self._loss += loss.double()
            for each in load:
                self._loads.add(each)
        elif stage + 1 in self.stages:
            self._inputs[stage + 1, microbatch] = out
        else:
            self.outgoing["F", stage, microbatch] = out

    def _backward(self, kind: str, stage: int, microbatch: int) -> None:
        here = self.stages[stage]
        run = here.module.backward if kind == "B" else here.module.input_grad
        if stage == self.last:
            out = run(here, microbatch, self._beside_loss())
        else:
            out = run(here, microbatch, self._output_grads.pop((stage, microbatch), None))
        if stage == 0:
            return
        if stage - 1 in self.stages:
            self._output_grads[stage - 1, microbatch] = out
        elif out is not None:  # None where nothing below trains
            self.outgoing["B", stage, microbatch] = out

    def _beside_loss(self) -> Crossing | None:
        """The gradients of what the last stage gives beside the loss; None where that is nothing.

        With a load of routers all forwards come before the first backward.
        """
        if not self._loads.settled:
            self._loss += self._loads.settle()
        return (self._loads.gradient(),) if self._loads.given else None

    def _send(self, kind: str, stage: int, microbatch: int) -> None:
        out = self.outgoing.pop((kind, stage, microbatch))
        self.transfers.send(kind, values_of(out), self.neighbour(f"SEND_{kind}", stage))

    def _receive(self, kind: str, stage: int, microbatch: int) -> None:
        source = self.neighbour(f"RECV_{kind}", stage)
        receive = partial(self.transfers.receive, kind, source)
        self.arrived(kind, stage, microbatch, crossing_like(self.described(kind, stage), receive))

    def described(self, kind: str, stage: int) -> Any:
        """Return the shapes and dtypes of what crosses into a stage."""
        module = self.stages[stage].module
        return module.ENTRY if kind == "F" else module.EXIT

    def arrived(self, kind: str, stage: int, microbatch: int, x: Crossing) -> None:
        """Let what crossed into a stage wait for its action."""
        if kind == "F":
            self._inputs[stage, microbatch] = x
        else:
            self._output_grads[stage, microbatch] = x

    def neighbour(self, kind: str, stage: int) -> int:
        """Return the pp rank at the other end of a transfer."""
        behind = kind in ("SEND_F", "RECV_B")
        return self.layout.stage_ranks[stage + (1 if behind else -1)]

    def _step(self, lr: float) -> tuple[float, float]:
        self.transfers.finish()
        for name, bucket in self.buckets.items():
            bucket.finish()
            if len(bucket.bucket.homes) > 1:
                self._wait_for_recordings()
                bucket.sum_homes(self.tied[name])
        sums = self._counted_loss(), self.optimizer.squares()
        self._wait_for_recordings()
        loss, squares = self.agreement.sum(*sums)
        norm = squares**0.5
        self.optimizer.step(loss, norm, lr)
        return loss, norm

    def _wait_for_recordings(self) -> None:
        """Wait on the host until the recordings of the step have run. NCCL forbids a call while one
        of its communicators' recordings is outstanding (NCCL_GRAPH_MIXING_SUPPORT in its docs)."""
        if self._outstanding and mesh.world() > 1 and self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        self._outstanding = False

    def _counted_loss(self) -> Tensor:
        """The loss differs along the pipeline and the batch; one rank of those that hold the same
        counts."""
        counts = mesh.owns(mesh.names(*mesh.PIPELINE, *mesh.BATCH))
        return self._loss if counts else torch.zeros_like(self._loss)

    @torch.no_grad()
    def evaluate(self, batches: list[Batch], label_count: int) -> float:
        """Mean loss over micro-batches of any number, forward only; the same on every rank."""
        if self.replay is not None:
            self.replay.make_room()
        self._begin(batches, label_count, training=False)
        for microbatch in range(len(batches)):
            for stage in self.stages:
                self.beacon.mark("EVAL", stage, microbatch)
                if stage > 0 and stage - 1 not in self.stages:
                    self._receive("F", stage, microbatch)
                self._forward(stage, microbatch)
                if stage < self.last and stage + 1 not in self.stages:
                    self._send("F", stage, microbatch)
        self.transfers.finish()
        if not self._loads.settled:
            self._loss += self._loads.settle()
        loss = self._counted_loss()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(loss)
        return float(loss)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
