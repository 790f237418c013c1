"""Patterns of captured ops that one semantic op stands for."""

from dataclasses import dataclass

from ..graph import Op


@dataclass(frozen=True)
class Head:
    """The ops that make the logits: `linear` is the last linear, or None where it is another op;
    `last` is the op found there. softcap: 0 where there is none."""

    linear: Op | None
    last: Op | None
    softcap: float


def head_of(logits: str, producers: dict[str, Op]) -> Head:
    """The linear layer without bias behind the logits, optionally soft-capped."""
    op, softcap = producers.get(logits), 0.0
    if op is not None and op.target == "mul.Tensor" and op.attr("other") is not None:
        softcap, op = _softcapped(op, producers)
    fits = op is not None and op.target == "linear" and len(op.inputs) == 2
    return Head(op if fits else None, op, softcap)


def _softcapped(op: Op, producers: dict[str, Op]) -> tuple[float, Op | None]:
    """tanh(logits / cap) * cap -> (cap, the linear); (0, op) when it is something else."""
    cap = op.attr("other")
    tanh = producers.get(op.inputs[0])
    div = producers.get(tanh.inputs[0]) if tanh is not None and tanh.target == "tanh" else None
    if div is not None and div.target == "div.Tensor" and div.attr("other") == cap:
        return float(cap), producers.get(div.inputs[0])
    return 0.0, op
