"""A bound on a step that costs next to nothing: it knows no cuts, options or memory."""

from dataclasses import dataclass
from math import expm1, log1p


@dataclass(frozen=True)
class Floor:
    """What floors on all schedules follow from.

    busy_us: compute of one micro-batch on all units, at least. forward_share: the share of it that
    a forward takes, by the unit where that is least. collectives_us: until some rank has done its
    collectives. tail_us: after the last backward.
    """

    busy_us: float
    forward_share: float
    collectives_us: float
    tail_us: float

    def step_us(self, num_stages: int, num_microbatches: int, share: float) -> float:
        """Return the floor in us. share: of a stage's compute, what must pass before those behind
        it start, or after they have ended."""
        filled = filled_us(self.busy_us, num_stages, num_microbatches, share)
        return max(filled, self.collectives_us) + self.tail_us


def filled_us(busy_us: float, num_stages: int, num_microbatches: int, share: float) -> float:
    """Return a bound on the step under any split of compute among stages, in us.

    With t of one micro-batch on a stage, P of those ahead of it, T of all and x the share, step >=
    m t + x P. The step is least where these are equal for all stages. Then what is left of it after
    the stages ahead, step - x P, falls by a factor of 1 - x / m with each stage of n, so that

        step >= x T / (1 - (1 - x / m)^n)
    """
    if not share:
        return num_microbatches * busy_us / num_stages
    if share >= num_microbatches:
        return share * busy_us
    return share * busy_us / -expm1(num_stages * log1p(-share / num_microbatches))
