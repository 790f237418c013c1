"""Losses of the user's own, by name or as they are."""

from typing import TYPE_CHECKING

from meshwright.runtime.own_code import load_named

from .objects import spec_of

if TYPE_CHECKING:
    from meshwright.ir.capture.own_loss import LossFunction, OwnLoss


def loss_of(given: object, vocab_size: int) -> "OwnLoss | None":
    """Return the loss that is given, or named, with what it was measured to be; None for "".

    Raises MeshwrightError where it cannot be imported, or is neither a mean nor a sum over the
    labels that count.
    """
    if given == "":
        return None
    from meshwright.ir.capture.own_loss import OwnLoss, measured

    if isinstance(given, OwnLoss):
        return given
    name = spec_of(given)
    return measured(name, _function(given, name), vocab_size)


def _function(given: object, name: str) -> "LossFunction":
    is_function = callable(given) and not isinstance(given, type)
    found = given if is_function else load_named(name, "--loss")
    if not callable(found):
        raise ValueError(
            f"--loss {name} is a {type(found).__name__}; give a function of (logits, labels)"
        )
    return found
