"""What Muon's iteration on hidden matrices takes (runtime/optimizers/muon.py).

One rank of a stage iterates on a matrix, so the work is dealt out over the ranks that reduce
gradients and those that cut tensors. A step of the iteration multiplies x, of r rows and c >= r
columns, by its transpose, squares that product, and multiplies x by a sum of both: 2 r r (2 c + r)
flops. It copies x and the product, which two of the multiplications add to. Once an update, x is
stacked, measured, divided, scaled and put back.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.ir.plan import Plan, read_by_table
from meshwright.ir.sizes import Shape, evaluate
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
    shapes: dict[str, Shape] = {}
    tables = set()
    for item in traced.segmented.instances:
        graph = traced.joints[item.segment]
        for given, name in zip(graph.inputs_of("param"), item.params, strict=True):
            shapes[name] = given.value.shape
            if read_by_table(graph, given.value.name):
                tables.add(name)
    return _of_matrices((name, shape) for name, shape in shapes.items() if name not in tables)


def iterations_of(plan: Plan) -> dict[str, Iteration]:
    """Return the iterations on a plan's hidden matrices by parameter; none without Muon."""
    if plan.optimizer != ITERATES:
        return {}
    tables = plan.tables()
    return _of_matrices((p.name, p.shape) for p in plan.params if p.name not in tables)


def _of_matrices(params: Iterable[tuple[str, Shape]]) -> dict[str, Iteration]:
    sizes = ((name, [int(evaluate(size, {})) for size in shape]) for name, shape in params)
    return {name: iteration(*shape) for name, shape in sizes if len(shape) == 2}
