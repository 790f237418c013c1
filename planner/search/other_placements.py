"""Placements of a compute mesh other than the default ones, which minimise a micro-batch's time
alone: of another price of a byte, another order of the sequence, or a sequence that tensor axes
leave whole. Steps tell which are faster.
"""

from collections.abc import Iterator
from dataclasses import replace

from meshwright.ir.mesh import CONTEXT, TENSOR, Mesh

from ..sharding.sequence_orders import ORDERS
from .candidate_costs import CandidateCosts
from .pins import Pins
from .problem import Placing


def other_placements(costs: CandidateCosts, mesh: Mesh) -> Iterator[tuple[str, CandidateCosts]]:
    """Yield what is other about placements of a mesh, and costs with them; each once."""
    if mesh.num_devices == 1:
        return
    base = costs.sharding(mesh)
    seen = [base]
    for what, pins, placing in _ways(costs, mesh, base.price):
        other = costs.under(pins=pins, placing=placing)
        found = other.sharding(mesh)
        if not any(found.same_placements(known) for known in seen):
            seen.append(found)
            yield what, other


def _ways(costs: CandidateCosts, mesh: Mesh, price: float) -> Iterator[tuple[str, Pins, Placing]]:
    """Yield what pins leave free: how placements differ, and the pins and inputs of these. price:
    of a byte, the default."""
    pins, placing = costs.problem.pins, costs.problem.placed_for
    shares = costs.problem.budget.price_shares
    if not shares:
        return
    for share in shares if pins.price is None else ():
        at = share * price
        words = f"placements at {share:g} of the price of a byte"
        yield words, replace(pins, price=at), replace(placing, price=at)
    if pins.cp_order is None and mesh.count(CONTEXT) > 1:
        for order in ORDERS:
            given = replace(pins, cp_order=order), replace(placing, order=order)
            yield f"{order} shards of the sequence", *given
    if pins.shard_sequence is None and pins.price is None and mesh.count(TENSOR) > 1:
        whole = replace(placing, whole_sequence=True)
        yield "sequences that tp leaves whole", replace(pins, shard_sequence=0), whole
