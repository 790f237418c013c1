"""Gradients in a plan's dtype, where the module rounds and the program does."""

import math
from collections.abc import Iterable

from torch import Tensor

from meshwright.ir.errors import ProofError
from meshwright.ir.graph import Graph
from meshwright.ir.traced import Traced

from .locate import reader_of
from .outcome import Outcome

NOISE = 3.0  # times the module's own rounding, in the plan's dtype
# Of the largest gradient's norm: the least one that errors are set in relation to.
_SMALL = 1e-2


def compare_rounding(
    where: str, traced: Traced, epsilon: float, exact: Outcome, own: Outcome, found: Outcome
) -> None:
    """Gradients, each by its distance from float64 relative to its size; as one those of weights
    that an op puts together: an expert that few tokens chose rounds by itself as those do."""
    norms = {n: float(g.norm()) for n, g in exact.grads.items() if g is not None}
    least = _SMALL * max(norms.values(), default=0.0) or 1.0  # none where a frozen head is zero
    together = _together(traced.graph)
    groups = {name: together.get(name, (name,)) for name in found.grads}
    sizes = {
        group: max(_norm(norms.get(k, 0.0) for k in group), least) for group in groups.values()
    }
    own_off, off = (_distances(outcome, exact, sizes) for outcome in (own, found))
    usual = max(sorted(own_off[group] for group in groups.values())[len(groups) // 2], epsilon)
    for name, group in reversed(list(groups.items())):
        if not off[group] <= NOISE * (own_off[group] + usual):
            raise ProofError(
                f"{where}: the gradient of {name} ({reader_of(traced.graph, name)}) is "
                f"{off[group]:.2g} of its size away from float64, the module's own "
                f"{own_off[group]:.2g}"
            )


def _distances(
    given: Outcome, exact: Outcome, sizes: dict[tuple[str, ...], float]
) -> dict[tuple[str, ...], float]:
    """Return how far the gradients of some parameters are away, by their size."""
    return {
        group: _norm(_distance(given.grads[name], exact.grads[name]) for name in group) / size
        for group, size in sizes.items()
    }


def _norm(numbers: Iterable[float]) -> float:
    return math.hypot(*numbers)


def _together(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return the trainable parameters that an op reads beside others of their shape, by name."""
    params = {i.value.name: i for i in graph.inputs_of("param") if i.trainable}
    found: dict[str, tuple[str, ...]] = {}
    for op in graph.ops:
        read = [params[name] for name in op.inputs if name in params]
        if len(read) > 2 and len({i.value.shape for i in read}) == 1:
            found |= dict.fromkeys((i.ref for i in read), tuple(i.ref for i in read))
    return found


def _distance(given: Tensor | None, exact: Tensor | None) -> float:
    if given is None or exact is None:
        return 0.0
    return float((given.double() - exact).norm())
