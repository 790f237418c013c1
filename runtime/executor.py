"""The executor: runs one stage's list of actions for one step.

The emitted stage file holds the functions and the loops over instances; they call back here for
parameters, saved values and the neighbours' tensors. Actions are (kind, micro-batch) tuples.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import collectives, mesh
from .buckets import FlatBucket
from .health import Beacon
from .layout import Instance, Layout, Piece
from .optimizer import AdamWOptions, Optimizer

KINDS = ("F", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "STEP")
Batch = tuple[Tensor, Tensor]  # tokens, labels of one micro-batch


class Executor:
    """State of one rank: buckets, saved values in flight, transfers under way."""

    def __init__(
        self,
        stage: ModuleType,
        layout: Layout,
        constants: dict[str, Tensor],
        options: AdamWOptions,
        *,
        seed: int,
        compiler: Callable[[Callable], Callable] | None = None,
    ) -> None:
        self.stage, self.layout, self.device = stage, layout, mesh.device()
        self.index = mesh.coordinate("pp")
        self.pieces: dict[str, Piece] = {
            name: _compiled(piece, compiler) for name, piece in stage.PIECES.items()
        }
        self.instances: tuple[Instance, ...] = stage.INSTANCES
        names = {name for i in self.instances for name in i.buckets}
        self.buckets = {
            b.name: FlatBucket(b, layout, seed, self.device)
            for b in layout.buckets
            if b.name in names
        }
        self.tied = {
            b.name: mesh.stages_group(b.stages) for b in layout.buckets if len(b.stages) > 1
        }
        self.optimizer = Optimizer(list(self.buckets.values()), options, self.index)
        self.forward_group = mesh.axis_group_again("pp")
        self.backward_group = mesh.axis_group_again("pp")
        with torch.no_grad():
            self.context_values: dict[str, Tensor] = stage.context(constants)
        self.beacon = Beacon(None, 0)
        self._reset()

    def _reset(self) -> None:
        self._saved: dict[tuple[int, int], Any] = {}
        self._entry: dict[int, Tensor] = {}
        self._exit: dict[int, Tensor | None] = {}
        self._sends: list[tuple[dist.Work | None, Tensor]] = []
        self._reducing: list[FlatBucket] = []
        self._loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self.training = True

    # What the emitted loops call

    def prefetch(self, index: int) -> None:
        """Start gathering the parameters of instance `index`, if there is one."""
        if 0 <= index < len(self.instances):
            for name in self.instances[index].buckets:
                self.buckets[name].gather()

    def params(self, index: int) -> tuple[Tensor, ...]:
        item = self.instances[index]
        views: dict[str, Tensor] = {}
        for name in item.buckets:
            views.update(self.buckets[name].params())
        return tuple(views[p] for p in item.params)

    def grads(self, index: int) -> tuple[Tensor, ...]:
        item = self.instances[index]
        views: dict[str, Tensor] = {}
        for name in item.buckets:
            views.update(self.buckets[name].grads())
        return tuple(views[p] for p in item.params)

    def release(self, index: int) -> None:
        """Free gathered parameters of an instance, unless the next one shares them."""
        for name in self.instances[index].buckets:
            self.buckets[name].release()

    def reduce(self, index: int, microbatch: int) -> None:
        """Start reducing the gradients that this instance's backward completed."""
        last = microbatch == self.layout.num_microbatches - 1
        for name in self.instances[index].reduces:
            self.buckets[name].reduce(last)
            self._reducing.append(self.buckets[name])
        # One reduction runs behind the next backward; more would only hold their buffers.
        while len(self._reducing) > 1:
            self._reducing.pop(0).finish_reductions()

    def operands(self, index: int, microbatch: int) -> tuple[Tensor, ...]:
        """Context and data of a piece, in its order."""
        piece = self.pieces[self.instances[index].piece]
        data = {
            "tokens": self._batches[microbatch][0],
            "labels": self._batches[microbatch][1],
            "denominator": self._denominator,
        }
        return tuple(data[n] for n in piece.data) + tuple(
            self.context_values[n] for n in piece.context
        )

    def keep(self, index: int, microbatch: int, saved: tuple[Tensor, ...]) -> None:
        if self.training:
            self._saved[index, microbatch] = saved

    def saved(self, index: int, microbatch: int) -> tuple[Tensor, ...]:
        return self._saved.pop((index, microbatch))

    # One step

    @torch.no_grad()
    def train_step(self, batches: list[Batch], label_count: int, lr: float) -> tuple[float, float]:
        """Run the schedule once over this rank's micro-batches.

        batches: tokens and labels [micro_batch, seq] per micro-batch, on the device. label_count:
        unignored labels of the whole global batch. Returns (loss, gradient norm before clipping).
        Raises ValueError when the batch holds no label at all.
        """
        if label_count == 0:
            raise ValueError("the global batch has 0 labels that count; its loss is not defined")
        self._reset()
        self._take(batches, label_count)
        result = (0.0, 0.0)
        for kind, microbatch in self.stage.SCHEDULE:
            try:
                self.beacon.mark(kind, self.index, microbatch)
                result = self._run(kind, microbatch, lr) or result
            except Exception as error:
                rank = dist.get_rank() if dist.is_initialized() else 0
                error.add_note(f"rank {rank}, stage {self.index}, action {kind} {microbatch}")
                raise
        return result

    def _take(self, batches: list[Batch], label_count: int) -> None:
        self._batches = batches
        double = self.layout.dtype == "float64"
        kind = torch.float64 if double else torch.float32
        self._denominator = torch.full((), float(label_count), dtype=kind, device=self.device)

    def _run(self, kind: str, microbatch: int, lr: float) -> tuple[float, float] | None:
        if kind == "F":
            self._forward(microbatch)
        elif kind == "B":
            grad = self._exit.pop(microbatch, None)
            out = self.stage.backward(self, microbatch, grad)
            self._exit[microbatch] = out
        elif kind == "STEP":
            return self._step(lr)
        else:
            self._transfer(kind, microbatch)
        return None

    def _forward(self, microbatch: int) -> None:
        out = self.stage.forward(self, microbatch, self._entry.pop(microbatch, None))
        if self.stage.EXIT is None:
            self._loss += out.double()
        else:
            self._exit[microbatch] = out

    def _transfer(self, kind: str, microbatch: int) -> None:
        forward = kind.endswith("F")
        group = self.forward_group if forward else self.backward_group
        if kind.startswith("SEND"):
            x = self._exit.pop(microbatch)
            assert x is not None
            x = x.contiguous()
            peer = self._neighbour(1 if forward else -1)
            self._sends.append((collectives.send(x, peer, group), x))
            return
        shape, dtype = self.stage.ENTRY if forward else self.stage.EXIT
        peer = self._neighbour(-1 if forward else 1)
        x = collectives.receive(shape, dtype, self.device, peer, group)
        if forward:
            self._entry[microbatch] = x
        else:
            self._exit[microbatch] = x

    def _neighbour(self, step: int) -> int:
        here = {axis: mesh.coordinate(axis) for axis in self.layout.mesh}
        return mesh.rank_of({**here, "pp": here["pp"] + step})

    def _finish_sends(self) -> None:
        for work, _ in self._sends:
            if work is not None:
                work.wait()
        self._sends.clear()

    def _step(self, lr: float) -> tuple[float, float]:
        self._finish_sends()
        for name, bucket in self.buckets.items():
            bucket.finish_reductions()
            if len(bucket.bucket.stages) > 1:
                dist.all_reduce(bucket.grad_shard, group=self.tied[name])
        # Every tp rank holds the same loss; one of them counts.
        counts = mesh.coordinate("tp") == 0
        loss = self._loss if counts else torch.zeros_like(self._loss)
        return self.optimizer.step(loss, lr)

    @torch.no_grad()
    def evaluate(self, batches: list[Batch], label_count: int) -> float:
        """Mean loss over micro-batches of any number, forward only; the same on every rank."""
        self._reset()
        self.training = False
        self._take(batches, label_count)
        for microbatch in range(len(batches)):
            self.beacon.mark("EVAL", self.index, microbatch)
            if self.stage.ENTRY is not None:
                self._transfer("RECV_F", microbatch)
            self._forward(microbatch)
            if self.stage.EXIT is not None:
                self._transfer("SEND_F", microbatch)
        self._finish_sends()
        loss = self._loss if mesh.coordinate("tp") == 0 else torch.zeros_like(self._loss)
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(loss)
        return float(loss)


def _compiled(piece: Piece, compiler: Callable[[Callable], Callable] | None) -> Piece:
    if compiler is None:
        return piece
    return Piece(
        compiler(piece.forward), compiler(piece.backward), piece.takes_x, piece.context, piece.data
    )
