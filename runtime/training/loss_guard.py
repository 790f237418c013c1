"""Which steps may change the weights, and what happens when one may not."""

import math
import statistics
from collections import deque

from ..optimizers.bad_step import BadStepError

POLICIES = ("stop", "skip", "rollback")
# A spike is told from the losses of so many steps before it, once half of them are known.
WINDOW = 32
MARGIN = 1.0  # nats a token: small losses vary by large factors
MAX_ROLLBACKS = 10


class LossGuard:
    """Losses seen so far, and the level from which one counts as a spike.

    factor: a loss is a spike if it exceeds both `factor` times the median of the last WINDOW losses
    and that median plus MARGIN; 0 turns the check off.
    Every rank sees the same losses, so all decide alike.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self.rollbacks = 0

    @property
    def limit(self) -> float:
        """The highest loss of the next step that is no spike."""
        if self.factor == 0.0 or len(self.losses) < WINDOW // 2:
            return float("inf")
        usual = statistics.median(self.losses)
        return max(self.factor * usual, usual + MARGIN)

    def saw(self, loss: float) -> None:
        """Note the loss of a step that was done or skipped; a NaN would make the median one."""
        if math.isfinite(loss):
            self.losses.append(loss)

    def roll_back(self, error: BadStepError) -> None:
        """Count a rollback. Raises BadStepError when there were MAX_ROLLBACKS before."""
        self.rollbacks += 1
        if self.rollbacks > MAX_ROLLBACKS:
            raise BadStepError(
                f"{error}: after {MAX_ROLLBACKS} rollbacks the run stops; lower the rate, or look "
                "at the data"
            ) from None

    def go_on(self, losses: list[float]) -> None:
        """Continue after the losses that a checkpoint holds."""
        self.losses = deque(losses, maxlen=WINDOW)
