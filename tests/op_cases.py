"""A numeric case for each definition: operands, attributes, and what eager torch makes of them.

Pointwise ops are drawn from torch's schema; the others are listed by kind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from dropout_reference import falls
from torch import Tensor

from meshwright.ir.capture.joint import resolve
from meshwright.ir.ops.registry import DEFINITIONS

Tensors = list[Tensor]
Attrs = dict[str, Any]
SCALE, VOCAB = 0.5, 11
ATTENTION: Attrs = {"scale": SCALE, "causal": True, "window": 0, "softcap": 0.0}


@dataclass(frozen=True)
class OpCase:
    """expected: of the operands; None: torch's operator of that name."""

    operands: Tensors
    attrs: Attrs
    expected: Callable[..., Any] | None = None


def _random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1


def _flags(*shape: int) -> Tensor:
    return _random(*shape) > 0.6


def _ids(rows: int, *shape: int) -> Tensor:
    return torch.arange(_random(*shape).numel()).reshape(shape) % rows


# What a pointwise op needs beside its operands, where the schema has a default for it.
GIVEN: dict[str, Attrs] = {
    "clamp": {"min": 0.4},
    "clamp_min": {"min": 0.4},
    "_to_copy": {"dtype": "f32"},
    "to.dtype": {"dtype": "f32"},
}


def _pointwise(name: str) -> OpCase:
    operands: Tensors = []
    attrs = dict(GIVEN.get(name, {}))
    for argument in resolve(name)._schema.arguments:
        if argument.has_default_value() or argument.name in attrs:
            continue
        if str(argument.type) != "Tensor":
            attrs[argument.name] = 0.7
            continue
        truth = argument.name in ("condition", "mask") or name.startswith(("logical", "bitwise"))
        operands.append((_flags if truth else _random)(3, 4))
    return OpCase(operands, attrs)


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT * SCALE
    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def _gradients(function: Callable[..., Any], inputs: Tensors, *outgoing: Tensor) -> Any:
    leaves = [x.detach().requires_grad_() for x in inputs]
    made = function(*leaves)
    made = made if isinstance(made, tuple) else (made,)
    found = torch.autograd.grad(made[: len(outgoing)], leaves, outgoing)
    return found if len(found) > 1 else found[0]


def _loss(x: Tensor, w: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = x @ w.mT
    picked = logits.gather(-1, labels.clamp_min(0)[..., None])[..., 0]
    return logits.logsumexp(-1), torch.where(labels >= 0, picked, 0.0)


def _linear(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


X, W, DY = _random(2, 3, 4), _random(5, 4), _random(2, 3, 5)
Q, K, V = _random(2, 4, 5, 6), _random(2, 2, 5, 6), _random(2, 2, 5, 6)
OUT, LSE = _softmax_attention(Q, K, V)
LABELS = _ids(5, 2, 3).clone()
LABELS[0, 0] = -100
IDS, TABLE = _ids(VOCAB, 2, 7), _random(VOCAB, 4)
LOSS_LSE = _loss(X, W, LABELS)[0]
WEIGHTS, CHOICES = _random(3, 5, 4), _ids(3, 2, 6, 2)
EXPERT = {"transposed": False}


def _experts(x: Tensor, w: Tensor, ids: Tensor) -> Tensor:
    """Each token [..., I] times the matrices of its choices [..., K]."""
    return torch.einsum("...i,...koi->...ko", x, w[ids])


XE, DYE = _random(2, 6, 4), _random(2, 6, 2, 5)
ROWS, DECAYS = [_random(2, 5, 3, n) for n in (4, 4, 6)], -_random(2, 5, 3, 4)
BETAS = _random(2, 5, 3)


def _router_load(logits: Tensor) -> Tensor:
    """Loads of the best two of the experts, counted one by one."""
    p = logits.softmax(-1)
    best = p.argsort(-1, descending=True)[..., :2]
    shares = F.one_hot(best, p.shape[-1]).to(p.dtype).sum(-2) / 2
    return torch.stack([shares.sum(1), 3.0 * p.sum(1)], 1)


def _recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The delta rule by its definition, with the state's transition as a matrix."""
    state, found = torch.zeros(*k[:, 0].shape, v.shape[-1], dtype=v.dtype), []
    for t in range(v.shape[1]):
        outer = torch.einsum("bhi,bhj->bhij", k[:, t], k[:, t])
        keep = torch.eye(k.shape[-1]).to(v) - beta[:, t, :, None, None] * outer
        written = torch.einsum("bhi,bhj->bhij", k[:, t], beta[:, t, :, None] * v[:, t])
        state = keep @ (g[:, t].exp().unsqueeze(-1) * state) + written
        found.append((q[:, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(found, 1)


D2, D3 = _random(2, 3), _random(2, 3) + 1
DRAWS = torch.tensor([[1, 2, 1], [123456789, 987654321, 1]])


def _dropped(x: Tensor, draws: Tensor) -> Tensor:
    """Of x without rows: each element by its place."""
    kept = [not falls((123456789, 987654321), place, 0.4) for place in range(x.numel())]
    return x * torch.tensor(kept).view_as(x) / 0.6


LISTED: dict[str, OpCase] = {
    "view": OpCase([X], {"size": (6, 4)}),
    "_unsafe_view": OpCase([X], {"size": (6, 4)}),
    "reshape": OpCase([X], {"shape": (2, 12)}),
    "flatten.using_ints": OpCase([X], {"start_dim": 1}),
    "unflatten.int": OpCase([X], {"dim": 2, "sizes": (2, 2)}),
    "squeeze": OpCase([_random(1, 3, 1)], {}),
    "squeeze.dim": OpCase([_random(1, 3, 1)], {"dim": 0}),
    "squeeze.dims": OpCase([_random(1, 3, 1)], {"dim": (0, 2)}),
    "unsqueeze": OpCase([X], {"dim": 1}),
    "transpose.int": OpCase([X], {"dim0": 0, "dim1": -1}),
    "t": OpCase([W], {}),
    "permute": OpCase([X], {"dims": (2, 0, 1)}),
    "expand": OpCase([_random(3, 1)], {"size": (2, 3, 4)}),
    "slice.Tensor": OpCase([X], {"dim": 2, "start": 1, "end": 3}),
    "arange": OpCase([], {"end": 5}),
    "arange.start": OpCase([], {"start": 2, "end": 5}),
    "arange.start_step": OpCase([], {"start": 1, "end": 9, "step": 3}),
    "scalar_tensor": OpCase([], {"s": 0.5, "dtype": "f64"}),
    "full": OpCase([], {"size": (2, 3), "fill_value": 1.5, "dtype": "f64"}),
    "zeros": OpCase([], {"size": (2, 3), "dtype": "f64"}),
    "ones": OpCase([], {"size": (2, 3), "dtype": "f64"}),
    "new_zeros": OpCase([X], {"size": (2, 3)}),
    "new_ones": OpCase([X], {"size": (2, 3)}),
    "sum": OpCase([X], {}),
    "sum.dim_IntList": OpCase([X], {"dim": (0, -1), "keepdim": True}),
    "mean": OpCase([X], {}),
    "mean.dim": OpCase([X], {"dim": (1,)}),
    "amax": OpCase([X], {"dim": (-1,), "keepdim": True}),
    "_softmax": OpCase([X], {"dim": -1, "half_to_float": False}),
    "logcumsumexp": OpCase([X], {"dim": 1}),
    "cat": OpCase([X, X + 1], {"tensors": 2, "dim": 1}),
    "slice_backward": OpCase(
        [_random(2, 3, 2)], {"input_sizes": (2, 3, 4), "dim": 2, "start": 1, "end": 3, "step": 1}
    ),
    "mm": OpCase([W, _random(4, 3)], {}),
    "bmm": OpCase([X, _random(2, 4, 5)], {}),
    "matmul": OpCase([X[:, None], _random(3, 4, 5)], {}),
    "mw.linear": OpCase([X, W], {}, _linear),
    "mw.linear_input_grad": OpCase([DY, W], {}, lambda dy, w: _gradients(_linear, [X, w], dy)[0]),
    "mw.linear_weight_grad": OpCase([DY, X], {}, lambda dy, x: _gradients(_linear, [x, W], dy)[1]),
    "mw.embedding": OpCase([IDS, TABLE], {}, F.embedding),
    "mw.embedding_weight_grad": OpCase(
        [_random(2, 7, 4), IDS],
        {"num_embeddings": VOCAB},
        lambda dy, ids: _gradients(lambda w: F.embedding(ids, w), [TABLE], dy),
    ),
    "mw.dropout": OpCase([X, DRAWS], {"p": 0.4, "number": 1}, _dropped),
    "mw.expert_linear": OpCase([XE, WEIGHTS, CHOICES], EXPERT, _experts),
    "mw.expert_linear_input_grad": OpCase(
        [DYE, WEIGHTS, CHOICES],
        EXPERT | {"shared": True},
        lambda dy, w, ids: _gradients(lambda x: _experts(x, w, ids), [XE], dy),
    ),
    "mw.expert_linear_weight_grad": OpCase(
        [DYE, XE, CHOICES],
        EXPERT | {"num_experts": 3},
        lambda dy, x, ids: _gradients(lambda w: _experts(x, w, ids), [WEIGHTS], dy),
    ),
    "mw.biased_choice": OpCase(
        [_random(2, 6, 2), CHOICES, _random(3)], {}, lambda values, ids, bias: values
    ),
    "mw.biased_choice_backward": OpCase(
        [CHOICES],
        {"num_experts": 3, "double": True},
        lambda ids: 3.0 * F.one_hot(ids.flatten(), 3).sum(0).double() - ids.numel(),
    ),
    "mw.router_load": OpCase([_random(2, 5, 7)], {"top_k": 2, "factor": 3.0}, _router_load),
    "mw.router_load_backward": OpCase(
        [_random(2, 2, 7), _random(2, 5, 7)],
        {"factor": 3.0},
        lambda dy, logits: _gradients(_router_load, [logits], dy),
    ),
    "mw.recurrence": OpCase([*ROWS, DECAYS, BETAS], {"delta": True}, _recurrence),
    "mw.recurrence_backward": OpCase(
        [_random(2, 5, 3, 6), *ROWS, DECAYS, BETAS],
        {"delta": True},
        lambda do, *operands: _gradients(_recurrence, list(operands), do),
    ),
    "mw.attention": OpCase([Q, K, V], ATTENTION, _softmax_attention),
    "mw.attention_backward": OpCase(
        [_random(*OUT.shape), Q, K, V, OUT, LSE],
        ATTENTION,
        lambda do, q, k, v, o, lse: _gradients(_softmax_attention, [q, k, v], do),
    ),
    "mw.linear_cross_entropy": OpCase(
        [X, W, LABELS], {"softcap": 0.0}, lambda x, w, labels: (*_loss(x, w, labels), x @ w.mT)
    ),
    "mw.linear_cross_entropy_backward": OpCase(
        [D2, D3, X, W, LABELS, LOSS_LSE],
        {"softcap": 0.0},
        lambda dlse, dpicked, x, w, labels, lse: _gradients(
            lambda x, w: _loss(x, w, labels), [x, w], dlse, dpicked
        ),
    ),
}


def cases() -> dict[str, OpCase]:
    """By name: every definition that a rank computes alone."""
    drawn = {n: _pointwise(n) for n, made in DEFINITIONS.items() if made.kind == "pointwise"}
    return drawn | LISTED


def _composite(*operands: Tensor, **attrs: Any) -> OpCase:
    return OpCase(list(operands), attrs)


# Composites are compared by their expansion; those that end in a product are its cases.
COMPOSITES: dict[str, OpCase] = {
    "split.Tensor": _composite(X, split_size=3, dim=2),
    "split.sizes": _composite(X, split_size=[1, 3], dim=2),
    "split_with_sizes": _composite(X, split_sizes=[1, 3], dim=2),
    "chunk": _composite(X, chunks=3, dim=2),
    "unbind.int": _composite(X, dim=1),
    "layer_norm": _composite(X, _random(4), _random(4) + 1, normalized_shape=[4]),
    "rms_norm": _composite(X, _random(4), normalized_shape=[4]),
    "group_norm": _composite(_random(3, 4, 5), _random(4), _random(4) + 1, num_groups=2),
    "cumprod": _composite(X, dim=1),
}
SEMANTIC_COMPOSITES = {
    "linear", "addmm", "baddbmm", "embedding", "scaled_dot_product_attention", "drawn_attention",
    "drawn_channels", "mw.sink_attention",
}  # fmt: skip
