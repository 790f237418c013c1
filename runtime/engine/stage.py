"""One stage on this rank: what its emitted loops call, and what it holds between its actions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType

import torch
from torch import Tensor

from . import mesh
from .buckets import FlatBucket
from .kernels.dropout import dropout_keys
from .layout import Instance, Piece
from .offload import IN_TRANSIT, HostStore

Batch = Mapping[str, Tensor]  # what a micro-batch gives to the model, by role
Values = tuple[Tensor, ...]
# What an instance keeps of a micro-batch; None in place of what waits in the host's memory.
Kept = tuple[Tensor | None, ...]


class Step:
    """The batches and reductions that the stages of a rank share during one step.

    batches: of the step, by micro-batch.
    """

    def __init__(self, batches: list[Batch], training: bool) -> None:
        self.batches, self.training = batches, training
        self.reducing: list[FlatBucket] = []

    def reduce(self, bucket: FlatBucket) -> None:
        """One reduction runs behind the next backward; more would only hold their buffers."""
        bucket.reduce()
        self.reducing.append(bucket)
        while len(self.reducing) > 1:
            self.reducing.pop(0).finish_reductions()


class Stage:
    """The functions of an emitted stage file, its buckets, its saved values in flight."""

    def __init__(
        self,
        module: ModuleType,
        buckets: dict[str, FlatBucket],
        constants: dict[str, Tensor],
        compiler: Callable[[Callable], Callable] | None,
    ) -> None:
        self.module = module
        self.pieces: dict[str, Piece] = {
            name: _compiled(piece, compiler) for name, piece in module.PIECES.items()
        }
        self.instances: tuple[Instance, ...] = module.INSTANCES
        self.buckets = {name: buckets[name] for i in self.instances for name in i.buckets}
        self.host = HostStore(mesh.device())
        with torch.no_grad():
            self.context_values: dict[str, Tensor] = module.context(constants)
        self._draws: list[Tensor] = []

    def begin(self, step: Step) -> None:
        """Forget the step before, whether or not it came to its end."""
        self.step = step
        self._keep_draws(self._drawn_by_instance(step))
        self._saved: dict[tuple[int, int], Kept] = {}
        self.host.clear()
        self._handed: dict[tuple[int, int], Values] = {}

    def _keep_draws(self, drawn: list[Tensor]) -> None:
        """Keep keys where those of the step before are: a recorded micro-batch reads them there."""
        if [x.shape for x in drawn] != [x.shape for x in self._draws]:
            self._draws = drawn
        for own, new in zip(self._draws, drawn, strict=True):
            own.copy_(new)

    def _drawn_by_instance(self, step: Step) -> list[Tensor]:
        """The keys of each instance's dropouts in a step; an evaluation drops nothing."""
        given = step.batches[0].get("draws") if step.batches else None
        if given is None:
            return []
        spans = [(item.first_draw, self.pieces[item.piece].draws) for item in self.instances]
        numbers = [number for first, count in spans for number in range(first, first + count)]
        acts = torch.full_like(given[:1], int(step.training))
        own = torch.tensor(numbers, dtype=torch.int64, device=given.device)
        keys = dropout_keys(torch.cat((given[:4], acts)), own)
        return list(keys.split([count for _, count in spans]))

    # What the emitted loops call

    def prefetch(self, index: int) -> None:
        """Start gathering the parameters of instance `index`, if there is one."""
        if 0 <= index < len(self.instances):
            for name in self.instances[index].buckets:
                self.buckets[name].gather()

    def params(self, index: int) -> Values:
        item = self.instances[index]
        views: dict[str, Tensor] = {}
        for name in item.buckets:
            views.update(self.buckets[name].params())
        return tuple(views[p] for p in item.params)

    def grads(self, index: int) -> Values:
        """Return the buffers of the trained parameters' gradients, in order of the parameters."""
        item = self.instances[index]
        views: dict[str, Tensor] = {}
        for name in item.buckets:
            if self.buckets[name].trainable:
                views.update(self.buckets[name].grads())
        return tuple(views[p] for p in item.params if p in views)

    def release(self, index: int) -> None:
        """Free gathered parameters of an instance."""
        for name in self.instances[index].buckets:
            self.buckets[name].release()

    def reduce(self, index: int) -> None:
        """Start reducing the gradients that this instance's backward completed."""
        for name in self.instances[index].reduces:
            self.step.reduce(self.buckets[name])

    def operands(self, index: int, microbatch: int) -> Values:
        """Context and data of a piece, in its order."""
        piece = self.pieces[self.instances[index].piece]
        given = self.step.batches[microbatch]
        data = (self._draws[index] if n == "draws" else given[n] for n in piece.data)
        return tuple(data) + tuple(self.context_values[n] for n in piece.context)

    def keep(self, index: int, microbatch: int, saved: Values) -> None:
        if self.step.training:
            self._saved[index, microbatch] = saved

    def offload(self, index: int, microbatch: int) -> None:
        """Start moving what an instance offloads to the host, behind the forward of the next ones.

        Of the instances before it, IN_TRANSIT - 1 may still be leaving; at the stage's end none.
        """
        ends = index == len(self.instances) - 1
        near = [] if ends else [(index - k, microbatch) for k in range(1, IN_TRANSIT)]
        self.host.settle(keep=near)
        positions = self._offloads(index)
        if positions and self.step.training:
            saved = self._saved[index, microbatch]
            leaving = [saved[p] for p in positions]
            self.host.push((index, microbatch), leaving)  # type: ignore[arg-type]
            rest = (None if p in positions else value for p, value in enumerate(saved))
            self._saved[index, microbatch] = tuple(rest)

    def fetch(self, index: int, microbatch: int) -> None:
        """Start moving what the instances before `index` offloaded back to the device."""
        for before in range(1, IN_TRANSIT + 1):
            self.host.fetch((index - before, microbatch))

    def saved(self, index: int, microbatch: int) -> Values:
        saved = self._saved.pop((index, microbatch))
        if positions := self._offloads(index):
            back = dict(zip(positions, self.host.take((index, microbatch)), strict=True))
            saved = tuple(back.get(p, value) for p, value in enumerate(saved))
        return saved  # type: ignore[return-value]

    def _offloads(self, index: int) -> tuple[int, ...]:
        return self.pieces[self.instances[index].piece].offloads

    def hand(self, index: int, microbatch: int, values: Values) -> None:
        """Keep what input_grad hands to weight_grad."""
        self._handed[index, microbatch] = values

    def handed(self, index: int, microbatch: int) -> Values:
        return self._handed.pop((index, microbatch))


def _compiled(piece: Piece, compiler: Callable[[Callable], Callable] | None) -> Piece:
    if compiler is None:
        return piece
    return replace(
        piece,
        forward=compiler(piece.forward),
        backward=piece.backward and compiler(piece.backward),
        input_grad=piece.input_grad and compiler(piece.input_grad),
        weight_grad=piece.weight_grad and compiler(piece.weight_grad),
    )
