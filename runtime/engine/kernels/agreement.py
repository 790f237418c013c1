"""Whether kernels of ours compute their formulas on a device: asked once, as drivers, cards and
versions of Triton differ."""

import warnings
from collections.abc import Callable

import torch


def agree(what: str, device: torch.device, check: Callable[[], None]) -> bool:
    """Return whether `check` passes; where it raises, warn that torch's own ops compute `what`."""
    try:
        check()
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        warnings.warn(f"{what} computed by torch's own ops on {device}: {reason}", stacklevel=3)
        return False
    return True
