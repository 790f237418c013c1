"""Placements of a compute mesh other than the default ones, which minimise a micro-batch's time
alone: of another price of a byte, of more rows, another order of the sequence, or a sequence that
tensor axes leave whole. Steps tell which are faster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.ir.mesh import CONTEXT, TENSOR, Mesh

from ..sharding.sequence_orders import ORDERS
from .candidate_costs import CandidateCosts
from .pins import Pins
from .problem import Placing


def other_placements(
    costs: CandidateCosts, mesh: Mesh, rows: int, shares: Sequence[float]
) -> Iterator[tuple[str, CandidateCosts]]:
    """Yield what is other about placements of a mesh, and costs with them; each once. rows: of the
    micro-batches that are the fastest so far. shares: of the price of a byte to a device alone."""
    seen = [costs.sharding(mesh)]
    for what, other in placed_by(costs, mesh, rows, shares):
        found = other.sharding(mesh)
        if not any(found.same_placements(known) for known in seen):
            seen.append(found)
            yield what, other


def placed_by(
    costs: CandidateCosts, mesh: Mesh, rows: int, shares: Sequence[float]
) -> Iterator[tuple[str, CandidateCosts]]:
    """Yield what may be other about placements of a mesh, and costs that place it so."""
    if mesh.num_devices > 1:
        for what, pins, placing in _ways(costs, mesh, rows, shares):
            yield what, costs.under(pins=pins, placing=placing)


def denser(costs: CandidateCosts, meshes: Sequence[Mesh]) -> Iterator[CandidateCosts]:
    """Yield costs with placements of compute meshes that hold fewer bytes than the default ones, as
    a byte has a higher price, the fewest last; none where pins leave no others."""
    if not meshes or not _is_priced(costs):
        return
    last = costs
    for share in costs.problem.budget.dense_shares:
        placing = _priced(costs, meshes[0], share)
        pins = replace(costs.problem.pins, price=placing.price)
        other = costs.under(pins=pins, placing=placing)
        if not all(last.sharding(m).same_placements(other.sharding(m)) for m in meshes):
            yield other
            last = other


def densest(costs: CandidateCosts, meshes: Sequence[Mesh]) -> CandidateCosts:
    """Return costs with the placements that hold the fewest bytes, whatever pins say of meshes."""
    if not meshes or not _is_priced(costs):
        return costs
    return costs.under(placing=_priced(costs, meshes[0], costs.problem.budget.dense_shares[-1]))


def placed_for_rows(costs: CandidateCosts, rows: int) -> Placing:
    """Return inputs of placements. rows: of the micro-batches that they are for."""
    return replace(costs.problem.placed_for, micro_batch=rows)


def _is_priced(costs: CandidateCosts) -> bool:
    """Return whether a byte has the default price."""
    return costs.problem.pins.price is None and not costs.problem.placed_for.whole_sequence


def _priced(costs: CandidateCosts, mesh: Mesh, share: float) -> Placing:
    """Return inputs of placements at a share of the price of a byte to a device alone. mesh: any,
    which has its part of that price."""
    alone = costs.sharding(mesh).price * mesh.num_devices
    return replace(costs.problem.placed_for, price=share * alone)


def _ways(
    costs: CandidateCosts, mesh: Mesh, rows: int, shares: Sequence[float]
) -> Iterator[tuple[str, Pins, Placing]]:
    """Yield what pins leave free: how placements differ, and the pins and inputs of these."""
    pins, placing = costs.problem.pins, costs.problem.placed_for
    if rows > placing.micro_batch:
        yield f"placements for {rows} rows", pins, placed_for_rows(costs, rows)
    if not shares:
        return
    for share in shares if pins.price is None else ():
        at = _priced(costs, mesh, share)
        words = f"placements at {share:g} of the price of a byte to a device alone"
        yield words, replace(pins, price=at.price), at
    if pins.cp_order is None and mesh.count(CONTEXT) > 1:
        for order in ORDERS:
            given = replace(pins, cp_order=order), replace(placing, order=order)
            yield f"{order} shards of the sequence", *given
    if pins.shard_sequence is None and pins.price is None and mesh.count(TENSOR) > 1:
        whole = replace(placing, whole_sequence=True)
        yield "sequences that tp leaves whole", replace(pins, shard_sequence=0), whole
