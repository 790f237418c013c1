"""Linear + cross-entropy over a vocabulary shard, chunked over tokens.

Logits exist for one chunk of tokens at a time, in at least float32 after the matmul. `start` is
the first vocabulary id that this rank's rows of w hold. Legend: T tokens, I features, V vocabulary.
"""

import torch
from torch import Tensor

from .linear import add_linear_weight_grad

CHUNK_ELEMENTS = 2048 * 131072  # logits of one chunk: 0.5 GiB in bf16


def _chunk(tokens: int, vocab: int) -> int:
    return max(1, min(tokens, CHUNK_ELEMENTS // vocab))


def _logits(x_TI: Tensor, w: Tensor, softcap: float) -> tuple[Tensor, Tensor | None]:
    """(logits, tanh of the capped logits or None) in at least float32."""
    logits = (x_TI @ w.t()).to(torch.promote_types(x_TI.dtype, torch.float32))
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
    x_TI, labels_T = x.reshape(-1, x.shape[-1]), labels.reshape(-1)
    size = _chunk(x_TI.shape[0], w.shape[0])
    lse, picked = [], []
    for x_part, label_part in zip(x_TI.split(size), labels_T.split(size), strict=True):
        logits, _ = _logits(x_part, w, softcap)
        row, here = _local(label_part, start, w.shape[0])
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
    *,
    softcap: float,
    start: int,
) -> tuple[Tensor, Tensor]:
    """(dx [..., I], dw [V, I]); dx is partial over the vocabulary shards."""
    dw = torch.zeros_like(w)
    given = dlse, dpicked, x, w, labels, lse
    return add_linear_cross_entropy_backward(dw, *given, softcap=softcap, start=start), dw


def add_linear_cross_entropy_backward(
    grad: Tensor,
    dlse: Tensor,
    dpicked: Tensor,
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    lse: Tensor,
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
    for x_part, dl, dp, label, norm in zip(x_TI.split(size), *flat, strict=True):
        dlogits = _dlogits(x_part, w, dl, dp, label, norm, softcap, start)
        dx.append(dlogits @ w)
        add_linear_weight_grad(dw, dlogits, x_part)
    if dw is not grad:
        grad.add_(dw)
    return torch.cat(dx).view(x.shape)


def _dlogits(
    x_TI: Tensor, w: Tensor, dlse: Tensor, dpicked: Tensor, labels: Tensor, lse: Tensor,
    softcap: float, start: int,
) -> Tensor:  # fmt: skip
    logits, bounded = _logits(x_TI, w, softcap)
    row, here = _local(labels, start, w.shape[0])
    dlogits = torch.exp(logits - lse.unsqueeze(1)) * dlse.unsqueeze(1)
    columns = torch.arange(w.shape[0], device=w.device)
    hit = (columns.unsqueeze(0) == row.unsqueeze(1)) & here.unsqueeze(1)
    dlogits = dlogits + torch.where(hit, dpicked.unsqueeze(1), 0.0)
    if bounded is not None:
        dlogits = dlogits * (1.0 - bounded * bounded)
    return dlogits.to(x_TI.dtype)
