"""What Muon's iteration on hidden matrices takes (runtime/optimizers/muon.py).

One rank of a stage iterates on a matrix, so the work is dealt out over the ranks that reduce
gradients and those that cut tensors. A step of the iteration multiplies x, of r rows and c >= r
columns, by its transpose, squares that product, and multiplies x by a sum of both: 2 r r (2 c + r)
flops. It copies x and the product, which two of the multiplications add to. Once an update, x is
stacked, measured, divided, scaled and put back.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.ir.plan import Plan
from meshwright.ir.sizes import Shape, evaluate
from meshwright.ir.tables import tables_among
from meshwright.ir.traced import Traced

ITERATES = "muon"
STEPS = 5  # as the runtime has it; a test holds them equal
_ONCE = 11  # elements read or written once an update, for each element of a matrix


@dataclass(frozen=True)
class Iteration:
    """Of one matrix: flops, and elements that are moved beside them."""

    flops: float
    moved: float


def iteration(rows: int, columns: int) -> Iteration:
    """Return what the iteration on a matrix takes."""
    short, long = sorted((rows, columns))
    copies = 2 * STEPS * (short * long + short * short)
    return Iteration(STEPS * 2.0 * short**2 * (2 * long + short), _ONCE * short * long + copies)


def iterations(optimizer: str, traced: Traced) -> dict[str, Iteration]:
    """Return the iterations on a model's hidden matrices by parameter; none without Muon."""
    if optimizer != ITERATES:
        return {}
    tables = tables_among((traced.joints[i.segment], i.params) for i in traced.segmented.instances)
    params = ((i.ref, i.value.shape) for i in traced.graph.inputs_of("param"))
    return _of_matrices(params, tables)


def iterations_of(plan: Plan) -> dict[str, Iteration]:
    """Return the iterations on a plan's hidden matrices by parameter; none without Muon."""
    if plan.optimizer != ITERATES:
        return {}
    return _of_matrices(((p.name, p.shape) for p in plan.params), plan.tables())


def _of_matrices(params: Iterable[tuple[str, Shape]], tables: set[str]) -> dict[str, Iteration]:
    hidden = ((name, shape) for name, shape in params if len(shape) == 2 and name not in tables)
    return {name: iteration(*(int(evaluate(n, {})) for n in shape)) for name, shape in hidden}
