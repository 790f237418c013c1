"""What all ranks learn together in a step: sums and flags, in the step's one all_reduce."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass
class Flag:
    """A condition. here: set on this rank. anywhere: any rank had set it at the last step."""

    here: bool = False
    anywhere: bool = False


class Agreement:
    """Flags whose `anywhere` is the same on every rank from one step to the next.

    stop: a signal asks for a stop. write_failed: a checkpoint could not be written. save: it is
    time for one, or a callback asks for one. end: a callback asks for the end of the run.
    commands: a user gave one to the run. unrecorded: it issues what others may have recorded.
    """

    def __init__(self) -> None:
        self.stop, self.write_failed, self.save, self.end = (Flag() for _ in range(4))
        self.commands, self.unrecorded = Flag(), Flag()

    def sum(self, *values: Tensor) -> list[float]:
        """Return the sums over all ranks of 0-dim tensors; the flags travel with them."""
        flags = (self.stop, self.write_failed, self.save, self.end, self.commands, self.unrecorded)
        device = values[0].device
        own = [torch.full((), f.here, dtype=torch.float64, device=device) for f in flags]
        totals = torch.stack([*(value.double() for value in values), *own])
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(totals)
        found = self.read(totals)
        for flag, count in zip(flags, found[len(values) :], strict=True):
            flag.anywhere = count > 0
        return found[: len(values)]

    def read(self, totals: Tensor) -> list[float]:
        """Return the values of the step's sums."""
        return totals.tolist()
