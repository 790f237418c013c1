"""Modules of one op each, from torch's own table of ops and their sample inputs."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    ReductionOpInfo,
    UnaryUfuncInfo,
)
from torch.utils._pytree import tree_flatten, tree_map

VOCAB, DIM = 37, 12
_DRAWS = 8  # sample inputs looked at


def full_name(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


OPS: dict[str, OpInfo] = {
    full_name(op): op
    for op in op_db
    if op.supports_autograd and op.supports_dtype(torch.float64, "cpu")
}


class Base(nn.Module):
    """Embedding, body, head. Bodies take h [B, S, 12] and return the like."""

    def __init__(self, op: OpInfo) -> None:
        super().__init__()
        self.op = op
        self.embed = nn.Embedding(VOCAB, DIM)
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embed(tokens)))

    def body(self, h: Tensor) -> Tensor:
        raise NotImplementedError


class OfParameters(Base):
    """The op on parameters that hold a sample's values; its results, summed up, scale h."""

    def __init__(self, op: OpInfo, sample: Any) -> None:
        super().__init__(op)
        self.sample, count = sample, 0
        for leaf in tree_flatten(_given(sample))[0]:
            if isinstance(leaf, Tensor):
                held = leaf.detach().clone()
                if leaf.requires_grad:
                    self.register_parameter(f"given_{count}", nn.Parameter(held))
                else:
                    self.register_buffer(f"given_{count}", held)
                count += 1

    def body(self, h: Tensor) -> Tensor:
        count = iter(range(1000))

        def held(leaf: Any) -> Any:
            return getattr(self, f"given_{next(count)}") if isinstance(leaf, Tensor) else leaf

        first, args, kwargs = tree_map(held, _given(self.sample))
        if isinstance(self.op, UnaryUfuncInfo):
            first = _within(first, *self.op.domain)
        found = self.sample.output_process_fn_grad(self.op(first, *args, **kwargs))
        return self.proj(h) * (1 + 0.1 * torch.tanh(summed(found)))


class OfStream(Base):
    """The op on h itself: by elements, of two streams, or over one dim."""

    def __init__(self, op: OpInfo, options: dict[str, Any]) -> None:
        super().__init__(op)
        self.options = options

    def body(self, h: Tensor) -> Tensor:
        y = self.proj(h)
        if isinstance(self.op, BinaryUfuncInfo):
            return h + self.op(y.exp(), h.exp() + 0.5)
        if isinstance(self.op, UnaryUfuncInfo):
            y = _within(y, *self.op.domain)
        found = self.op(y, **self.options)
        return h + (found if isinstance(found, Tensor) else found[0])


def _within(y: Tensor, low: float | None, high: float | None) -> Tensor:
    """Values between two bounds, well inside of them."""
    if low is None and high is None:
        return y
    low = (high or 0.0) - 3.0 if low is None else low
    width = 3.0 if high is None else high - low
    return low + width * (0.1 + 0.8 * torch.sigmoid(y))


def _given(sample: Any) -> tuple:
    return sample.input, tuple(sample.args), dict(sample.kwargs)


def summed(found: Any) -> Tensor:
    """A number that every element of the float results weighs in differently."""
    total = torch.zeros((), dtype=torch.float64)
    for leaf in tree_flatten(found)[0]:
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
            weights = torch.arange(real.numel(), dtype=torch.float64).add(1).cos()
            total = total + (real.double().reshape(-1) * weights).sum()
    return total


@dataclass(frozen=True)
class OpModule:
    """A module of an op to be built. form: of parameters, or of the stream."""

    name: str
    form: str
    build: Callable[[], nn.Module]


def op_modules(name: str) -> Iterator[OpModule]:
    """The modules of an op: none where it has no sample without complex or sparse tensors."""
    op = OPS[name]
    if (sample := sample_of(op)) is not None:
        yield OpModule(name, "parameters", partial(OfParameters, op, sample))
    if isinstance(op, ReductionOpInfo):
        for dim in (-1, 1):
            yield OpModule(name, f"dim {dim}", partial(OfStream, op, {"dim": dim, "keepdim": True}))
    if isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo):
        options = op.sample_kwargs("cpu", torch.float64, None)[0] if _is_unary(op) else {}
        yield OpModule(name, "stream", partial(OfStream, op, options))


def _is_unary(op: OpInfo) -> bool:
    return isinstance(op, UnaryUfuncInfo)


def sample_of(op: OpInfo) -> Any:
    """The first sample whose first tensor has 1 to 3 dims and elements; else the first of any."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        drawn = op.sample_inputs("cpu", torch.float64, requires_grad=True)
        samples = [s for s in islice(drawn, _DRAWS) if _is_plain(s)]
    usual = (s for s in samples if 1 <= _first(s).dim() <= 3 and _first(s).numel())
    return next(usual, samples[0] if samples else None)


def _tensors(sample: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(_given(sample))[0] if isinstance(leaf, Tensor)]


def _first(sample: Any) -> Tensor:
    return _tensors(sample)[0]


def _is_plain(sample: Any) -> bool:
    found = _tensors(sample)
    return bool(found) and not any(t.is_complex() or t.layout != torch.strided for t in found)
