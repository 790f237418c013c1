"""The module's dropouts replaced by the draws of its program: what else it computes is its own.

The n-th dropout that a forward calls is number n of the captured graph. torch's own functions are
replaced where a forward reaches them, so that layers and functions of torch draw so as well.

A dropout is known by the state of torch's generator, which each call moves on. torch's checkpoint
sets that state back before backward calls a part of the forward again, so the part's dropouts have
their numbers again.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from meshwright.ir.graph import Graph
from meshwright.ir.ops.dropout import rows_in
from meshwright.ir.ops.registry import definition
from meshwright.ir.sizes import Size, evaluate
from meshwright.runtime.engine.inputs import step_draws
from meshwright.runtime.engine.kernels.dropout import dropout, dropout_keys, row_keys

# The dim that holds rows and the elements of it that each row has; None: x holds no rows.
Site = tuple[int, Size] | None


def sites_of(graph: Graph) -> dict[int, Site]:
    """Return where rows lie in what each dropout of a captured graph is given, by its number."""
    drawn = [op for op in graph.ops if definition(op).numbered]
    return {op.attr("number"): rows_in(op.output.shape) for op in drawn}


@dataclass
class _Draws:
    """The dropouts of one call of a module. rows: int64 [rows], places in the global batch.

    numbers: of the dropouts so far, by the state of torch's generator.
    """

    sites: Mapping[int, Site]
    rows: Tensor
    seq: int
    step: Tensor
    numbers: dict[bytes, int] = field(default_factory=dict)

    def of(self, x: Tensor, p: float) -> Tensor:
        """What the next dropout makes of x."""
        state = torch.get_rng_state().numpy().tobytes()
        number = self.numbers.setdefault(state, len(self.numbers))
        torch.randint(2, ())  # moves the generator on
        dim, inner = self.sites.get(number) or (0, 1)
        rows = row_keys(self.step, self.rows) if self.sites.get(number) else None
        each = evaluate(inner, {"S": self.seq})
        key = dropout_keys(self.step, torch.tensor([number]))
        return dropout(x, key, rows, p=p, number=0, row_dim=dim, inner=each)


@contextmanager
def drawn(
    sites: Mapping[int, Site], rows: Tensor, seq: int, key: Tensor | None = None
) -> Iterator[None]:
    """Let a module's dropouts be the draws of a step. key: that of seed 0 and step 0, or another's.

    sites: none leaves the module as it is.
    """
    if not sites:
        yield
        return
    given = step_draws(0, 0) if key is None else key
    replaced = _replacements(_Draws(sites, rows, seq, given))
    before = [(place, name, getattr(place, name)) for place, name, _ in replaced]
    for place, name, function in replaced:
        setattr(place, name, function)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for place, name, function in before:
            setattr(place, name, function)


def _replacements(draws: _Draws) -> list[tuple[Any, str, Callable]]:
    attend = F.scaled_dot_product_attention

    def elements(x: Tensor, p: float, train: bool) -> Tensor:
        return draws.of(x, p) if train and p else x

    def channels(x: Tensor, p: float, train: bool) -> Tensor:
        ones = x.new_ones((*x.shape[:2], *(1 for _ in x.shape[2:])))
        return x * draws.of(ones, p) if train and p else x

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        more: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        if not dropout_p:
            return attend(q, k, v, attn_mask, 0.0, is_causal, **more)
        # The weights are what torch makes of values that are an identity.
        whole = torch.eye(k.shape[-2], dtype=v.dtype).expand(*k.shape[:-1], -1)
        weights = draws.of(attend(q, k, whole, attn_mask, 0.0, is_causal, **more), dropout_p)
        groups = q.shape[-3] // v.shape[-3] if enable_gqa else 1
        return weights @ (v.repeat_interleave(groups, -3) if groups > 1 else v)

    found: list[tuple[Any, str, Callable]] = [(F, attend.__name__, attention)]
    for name, function in (("dropout", elements), ("feature_dropout", channels)):
        for place in (torch, torch._VF):
            found += [(place, name, function), (place, f"{name}_", _written(function))]
    return found


def _written(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def write(x: Tensor, p: float, train: bool) -> Tensor:
        return x.copy_(function(x, p, train))

    return write
