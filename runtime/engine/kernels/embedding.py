"""Embedding lookup in a vocabulary shard. `start` is the first id that this rank's rows hold."""

import torch
from torch import Tensor


def embedding(ids: Tensor, w: Tensor, start: int, num_embeddings: int) -> Tensor:
    """ids [...], w [V / n, D] -> [..., D]; rows of ids held elsewhere are 0."""
    if w.shape[0] == num_embeddings:
        return torch.nn.functional.embedding(ids, w)
    here = (ids >= start) & (ids < start + w.shape[0])
    rows = torch.nn.functional.embedding(torch.where(here, ids - start, 0), w)
    return torch.where(here.unsqueeze(-1), rows, 0)


def embedding_weight_grad(
    dy: Tensor, ids: Tensor, start: int, rows: int, padding_idx: int = -1
) -> Tensor:
    """dy [..., D], ids [...] -> [rows, D] of the ids from `start` on; 0 for id padding_idx."""
    dy_ND, ids_N = dy.reshape(-1, dy.shape[-1]), ids.reshape(-1)
    here = (ids_N >= start) & (ids_N < start + rows) & (ids_N != padding_idx)
    # One row past the end collects what other ranks hold.
    index = torch.where(here, ids_N - start, rows)
    dw = dy.new_zeros((rows + 1, dy.shape[-1]))
    return dw.index_add_(0, index, dy_ND)[:rows]
