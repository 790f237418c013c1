"""Answers as lines of a picture: tokens a second over the first sweep."""

from collections.abc import Sequence

from .answers import Answer

Lines = dict[str, list[tuple[float, float]]]


def curves_of(answers: Sequence[Answer]) -> tuple[str, Lines]:
    """Return the label of the x axis, and points (x, tokens/s) by the name of their line.

    A line for each device and combination of the other sweeps; over devices where nothing is
    swept. Points without a plan are left out.
    """
    found: Lines = {}
    label = "devices"
    for answer in answers:
        if answer.step is None:
            continue
        x, rest = float(answer.devices), list(answer.point.swept)
        if rest:
            label, value = rest.pop(0)
            x = float(value.removeprefix("x"))
        device = answer.point.cluster.device.name
        name = ", ".join([device, *(f"{key}={value}" for key, value in rest)])
        found.setdefault(name, []).append((x, answer.step.tokens_per_s))
    return label, found
