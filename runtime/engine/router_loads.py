"""The loss that balances a model's routers, of a whole global batch.

A micro-batch's forward gives the load of its rows, [rows, 2, experts]: by row and expert the share
of choices and the probabilities times a factor, summed over tokens and routers. With f and p their
sums over the batch the loss is sum(f p) / sum(f)^2, whose gradient with respect to each row's
probabilities is f / sum(f)^2: known once every micro-batch went forward.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from . import mesh


class RouterLoads:
    """Loads of a step's micro-batches on this rank."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None  # [2, experts], float64
        self._like: Tensor | None = None  # the last load
        self._weights: Tensor | None = None  # of the probabilities, [experts]

    def add(self, load: Tensor) -> None:
        """Take the load of a micro-batch."""
        own = load.double().sum(0)
        self._sum = own if self._sum is None else self._sum + own
        self._like = load

    @property
    def given(self) -> bool:
        """Return whether there are any: the model's routers have a loss."""
        return self._like is not None

    @property
    def settled(self) -> bool:
        """Return whether nothing is left to sum."""
        return self._weights is not None or not self.given

    def settle(self) -> Tensor:
        """Sum the loads over all ranks of the batch; return this rank's part of the loss, 0-dim.

        All ranks that hold the loss call it together.
        """
        assert self._sum is not None
        total = self._sum if mesh.index(*mesh.CONTEXT) == 0 else torch.zeros_like(self._sum)
        if (group := mesh.group_of(*mesh.REDUCED)) is not None:
            total = total.clone()
            dist.all_reduce(total, group=group)
        self._weights = total[0] / total[0].sum() ** 2
        return (self._weights * self._sum[1]).sum()

    def gradient(self) -> Tensor:
        """Return the gradient of a micro-batch's load: [rows, 2, experts]."""
        assert self._weights is not None and self._like is not None
        found = torch.zeros_like(self._like)
        found[:, 1] = self._weights.to(found.dtype)
        return found
