"""Rows that a small model can learn: each token follows from the one before it."""

import torch

VOCAB = 64


def rows(index: int, length: int) -> torch.Tensor:
    """Row `index`: every third token from a drawn one on, some of them drawn instead."""
    generator = torch.Generator().manual_seed(index)
    first = torch.randint(VOCAB, (), generator=generator)
    found = (first + 3 * torch.arange(length)) % VOCAB
    drawn = torch.rand(length, generator=generator) < 0.1
    return torch.where(drawn, torch.randint(VOCAB, (length,), generator=generator), found)
