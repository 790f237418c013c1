"""Steps that must not change the weights."""


class BadStepError(ValueError):
    """A loss or gradient norm that is not finite, or a loss that spikes; nothing was updated."""


class NotFiniteError(BadStepError):
    """A loss or gradient norm that is not finite."""
