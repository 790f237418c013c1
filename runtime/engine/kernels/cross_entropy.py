"""Linear + cross-entropy over a vocabulary shard, chunked over tokens.

Logits exist for one chunk of tokens at a time, in at least float32 after the matmul; all of them
exist, in the type of x, where forward keeps them for backward. `start` is the first vocabulary id
that this rank's rows of w hold. Legend: T tokens, I features, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from .linear import add_linear_weight_grad, linear_input_grad
from .opaque import opaque

ROWS = {"cuda": 8}  # by type of device, what the vocabulary is filled up to in matmuls
CHUNK_ELEMENTS = 2048 * 131072  # logits of one chunk: 0.5 GiB in bf16


def _chunk(tokens: int, vocab: int) -> int:
    return max(1, min(tokens, CHUNK_ELEMENTS // vocab))


def _capped(logits_TV: Tensor, softcap: float) -> tuple[Tensor, Tensor | None]:
    """(logits, tanh of the capped logits or None) in at least float32."""
    logits = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
    if softcap == 0.0:
        return logits, None
    bounded = torch.tanh(logits / softcap)
    return bounded * softcap, bounded


def _local(labels_T: Tensor, start: int, rows: int) -> tuple[Tensor, Tensor]:
    """(label's row here or 0, whether it lies here); ignored labels lie nowhere."""
    here = (labels_T >= start) & (labels_T < start + rows)
    return torch.where(here, labels_T - start, 0), here


def linear_cross_entropy(
    x: Tensor, w: Tensor, labels: Tensor, *, softcap: float, start: int
) -> tuple[Tensor, Tensor]:
    """x [..., I], w [V, I], labels [...] -> (log-sum-exp, logit of the label or 0), both [...]."""
    x_TI = x.reshape(-1, x.shape[-1])
    chunks = x_TI.split(_chunk(x_TI.shape[0], w.shape[0]))
    return _statistics(_logits(chunks, w), labels, w.shape[0], softcap, start)


def linear_cross_entropy_keeping(
    x: Tensor, w: Tensor, labels: Tensor, *, softcap: float, start: int
) -> tuple[Tensor, Tensor, Tensor]:
    """linear_cross_entropy with the logits [..., V] that backward need not compute again."""
    (logits,) = _logits([x], w)
    logits_TV = logits.view(-1, w.shape[0])
    parts = logits_TV.split(_chunk(*logits_TV.shape))
    return *_statistics(parts, labels, w.shape[0], softcap, start), logits


def _logits(parts: Sequence[Tensor], w: Tensor) -> Iterator[Tensor]:
    """[..., V] of each part; rows begin where the matrix unit reads them whole."""
    whole = _whole(w)
    return ((x @ whole.t())[..., : w.shape[0]] for x in parts)


def _whole(w: Tensor) -> Tensor:
    """w with rows of zeros up to a multiple of ROWS. GPT-2's 50,257: matmuls on an H200 take 1.2 ms
    in place of 6.5 to 9 (5,341 tokens, 768 features, 2026-11-23)."""
    missing = -w.shape[0] % ROWS.get(w.device.type, 1)
    return torch.nn.functional.pad(w, (0, 0, 0, missing)) if missing else w


def _statistics(
    parts: Iterable[Tensor], labels: Tensor, rows: int, softcap: float, start: int
) -> tuple[Tensor, Tensor]:
    """(log-sum-exp, logit of the label or 0) of logits that come in chunks of tokens."""
    lse, picked = [], []
    labels_T = labels.reshape(-1)
    for part, label_part in zip(parts, labels_T.split(_chunk(labels_T.numel(), rows)), strict=True):
        logits, _ = _capped(part, softcap)
        row, here = _local(label_part, start, rows)
        lse.append(torch.logsumexp(logits, dim=-1))
        chosen = logits.gather(1, row.unsqueeze(1)).squeeze(1)
        picked.append(torch.where(here, chosen, 0.0))
    return torch.cat(lse).view(labels.shape), torch.cat(picked).view(labels.shape)


def linear_cross_entropy_backward(
    dlse: Tensor,
    dpicked: Tensor,
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    lse: Tensor,
    logits: Tensor | None = None,
    *,
    softcap: float,
    start: int,
) -> tuple[Tensor, Tensor]:
    """(dx [..., I], dw [V, I]); dx is partial over the vocabulary shards. Without logits they are
    computed again."""
    dw = torch.zeros_like(w)
    given = dlse, dpicked, x, w, labels, lse, logits
    return add_linear_cross_entropy_backward(dw, *given, softcap=softcap, start=start), dw


def add_linear_cross_entropy_backward(
    grad: Tensor,
    dlse: Tensor,
    dpicked: Tensor,
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    lse: Tensor,
    logits: Tensor | None = None,
    *,
    softcap: float,
    start: int,
) -> Tensor:
    """dx of linear_cross_entropy_backward; adds its dw to grad [V, I]."""
    x_TI = x.reshape(-1, x.shape[-1])
    size = _chunk(x_TI.shape[0], w.shape[0])
    flat = (t.reshape(-1).split(size) for t in (dlse, dpicked, labels, lse))
    # One chunk's product lives nowhere beside the sum, which orders the chunks too.
    dw = grad if grad.dtype == x.dtype else torch.zeros_like(w)
    dx = []
    x_parts, whole = x_TI.split(size), _whole(w)
    if logits is None:
        parts: Iterable[Tensor] = _logits(x_parts, w)
    else:
        parts = logits.view(-1, w.shape[0]).split(size)
    for x_part, part, dl, dp, label, norm in zip(x_parts, parts, *flat, strict=True):
        dlogits = _dlogits(part, dl, dp, label, norm, softcap, start)
        if whole is not w:
            dlogits = torch.nn.functional.pad(dlogits, (0, whole.shape[0] - w.shape[0]))
        dx.append(_both_grads(dw, dlogits, x_part, whole))
    if dw is not grad:
        grad.add_(dw)
    return torch.cat(dx).view(x.shape)


def _linear_grads(dw: Tensor, dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """Return linear_input_grad(dy, w); adds linear_weight_grad(dy, x) to dw, whose rows are the
    first of w's."""
    add_linear_weight_grad(dw, dy[:, : dw.shape[0]], x)
    return linear_input_grad(dy, w)


# One op for both, as torch.compile would put off the matmuls of dx and hold every chunk's dlogits.
_both_grads = opaque(_linear_grads, lambda dw, dy, x, w: dy.new_empty(x.shape), mutates=("dw",))


def _dlogits(
    logits_TV: Tensor, dlse: Tensor, dpicked: Tensor, labels: Tensor, lse: Tensor,
    softcap: float, start: int,
) -> Tensor:  # fmt: skip
    logits, bounded = _capped(logits_TV, softcap)
    row, here = _local(labels, start, logits.shape[1])
    dlogits = torch.exp(logits - lse.unsqueeze(1)) * dlse.unsqueeze(1)
    columns = torch.arange(logits.shape[1], device=logits.device)
    hit = (columns.unsqueeze(0) == row.unsqueeze(1)) & here.unsqueeze(1)
    dlogits = dlogits + torch.where(hit, dpicked.unsqueeze(1), 0.0)
    if bounded is not None:
        dlogits = dlogits * (1.0 - bounded * bounded)
    return dlogits.to(logits_TV.dtype)
