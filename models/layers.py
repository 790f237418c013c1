"""Weight matrices that start from a normal distribution.

PyTorch's own modules start elsewhere; initialising here, and only once, keeps the record of
in-place initialisers one entry a parameter.
"""

from __future__ import annotations

import torch
from torch import nn


class Linear(nn.Linear):
    """y = x W^T + b; W starts normal with the given deviation, b at zero."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        std: float,
        device: torch.device | str | None = None,
    ) -> None:
        self.init_std = std
        super().__init__(in_features, out_features, bias=bias, device=device)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, mean=0.0, std=self.init_std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """A table of rows, each starting normal with the given deviation."""

    def __init__(self, rows: int, dim: int, *, std: float) -> None:
        self.init_std = std
        super().__init__(rows, dim)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, mean=0.0, std=self.init_std)
