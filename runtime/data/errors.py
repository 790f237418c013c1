"""The one error of this folder."""


class DataError(ValueError):
    """Data that cannot feed the run; the message carries the numbers and the way out."""
