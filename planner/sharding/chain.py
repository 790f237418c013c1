"""The chain: one boundary layout per cut, one common placement per tied parameter.

Every unique segment is solved for each pair of boundary layouts that a chain can ask of it; a
Viterbi pass picks the cheapest sequence of layouts. A relaxation that is fractional gives a bound;
such a problem is branched on only where a cheapest sequence holds it. Layouts agree at a cut, so
nothing is redistributed between instances. A parameter that several instances share must lie the
same in all of them, with its gradient: every common placement is tried, the best total kept. Where
that is too many (whole blocks are shared), those that the segments choose for themselves between
each pair of layouts are tried.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeVar

from meshwright.ir.errors import InfeasibleError
from meshwright.ir.graph import Graph
from meshwright.ir.mesh import TENSOR, Mesh
from meshwright.ir.ops.questions import flops
from meshwright.ir.phases import Joint
from meshwright.ir.placement import Placement, replicated
from meshwright.ir.segment import Segmented

from ..cost.counts import number
from ..cost.graph_work import GraphWork
from ..cost.op_cost import Costs
from ..hardware.cluster import Cluster
from .boundary_layouts import Layout, format_layout, layouts_of
from .ilp import Programs, Sharding, shard, shard_or_bound
from .lower import lower
from .nodes import Demands, Offers, Ops, is_matmul_weight, nodes_of, offers_of, ops_of
from .objective import objective_us
from .sequence_orders import MIRRORED, orders_of

# Parameters that a refusal names.
_NAMED = 4
# Common placements of tied parameters that are tried one by one.
MAX_COMMON = 64
CUTS = ("activation", "grad")  # kinds of the inputs that cross the cuts of a segment

Progress = Callable[[str], None]
Pins = tuple[tuple[str, Placement], ...]
Common = tuple[Placement, Placement]  # of a tied parameter and of its gradient
Found = TypeVar("Found")


@dataclass(frozen=True)
class Lowered:
    """A unique segment in one layout, with its redistributions written out.

    boundary_in, boundary_out: of the values that cross its cuts, in order. The costs are for one
    micro-batch through forward and backward, resident bytes counted at the price.
    """

    name: str
    segment: str
    graph: Graph
    placements: dict[str, Placement]
    boundary_in: Layout
    boundary_out: Layout
    objective_us: float
    bound_us: float
    branched: bool


@dataclass(frozen=True)
class ShardedModel:
    """lowered: by piece name; instances: the piece of each segment instance, in order.

    bound_us: sum of the pieces' bounds on the chosen chain. price: us per resident byte used.
    """

    lowered: dict[str, Lowered]
    instances: tuple[str, ...]
    objective_us: float
    bound_us: float
    coverage: tuple[str, ...]
    price: float = 0.0

    def same_placements(self, other: "ShardedModel") -> bool:
        """Return whether every instance runs the same graph with the same placements."""
        pairs = zip(self.instances, other.instances, strict=True)
        both = [(self.lowered[a], other.lowered[b]) for a, b in set(pairs)]
        return all((a.graph.ops, a.placements) == (b.graph.ops, b.placements) for a, b in both)


def default_price(
    joints: dict[str, Graph], segmented: Segmented, cluster: Cluster, sizes: dict[str, int]
) -> float:
    """Return what a resident byte is worth to a device alone, in us: a micro-batch's matmuls on it
    / its memory. A rank of a mesh has its share of the matmuls: a byte is worth that share.

    To free a share of every rank's memory is worth that same share of the time the micro-batch
    takes a rank: memory is what larger micro-batches, less recompute and a smaller tp are bought
    with. Both sides grow with B and S alike. For a Llama of 8 billion parameters and one row of
    4096 tokens on an H200 it is 2e-6 us: halving a block's resident weights (1.7 GB with gradient
    and moments) on two ranks is then worth 0.9 ms.
    """
    each = {name: _matmul_us(graph, cluster, sizes) for name, graph in joints.items()}
    total = sum(each[i.segment] for i in segmented.instances)
    return total / cluster.device.memory_bytes


def _matmul_us(graph: Graph, cluster: Cluster, sizes: dict[str, int]) -> float:
    work = GraphWork(graph).of
    return sum(
        number(flops(op, graph), sizes)
        / cluster.device.matmul_rate(work[op.output.name].dtype)
        * 1e6
        for op in graph.ops
    )


@dataclass
class Posed:
    """What chains of one order leave for others at other prices and costs, by segment: its integer
    programs, and the strategies of its ops."""

    programs: dict[str, Programs] = field(default_factory=dict)
    offers: dict[str, Offers] = field(default_factory=dict)


def shard_model(
    segmented: Segmented,
    joints: dict[str, Graph],
    *,
    mesh: Mesh,
    cluster: Cluster,
    micro_batch: int,
    seq: int,
    num_microbatches: int,
    price: float | None,
    shard_matmul_weights: bool = False,
    whole_sequence: bool = False,
    order: str | None = None,
    progress: Progress | None = None,
    known: dict[Hashable, Any] | None = None,
    posed: dict[Hashable, Posed] | None = None,
) -> ShardedModel:
    """Placements of every segment instance on a compute mesh.

    joints: joint graph by segment name. micro_batch: rows of one data-parallel rank. seq: tokens.
    price: us per resident byte, 0 for none; None: a rank's share of `default_price`, 0 with
    whole_sequence.
    shard_matmul_weights: no rank holds or gathers a whole matmul weight that can be sharded.
    whole_sequence: tensor axes do not cut the sequence. order: of the sequence over context axes,
    the cheapest of sequence_orders.py if not given. known: what earlier calls for this model, with
    a cluster whose links and rates on this mesh are the same, have left for later ones. posed: what
    those with any cluster have left.
    Raises InfeasibleError when tied parameters find no common placement.
    """
    sizes = {"B": micro_batch, "S": seq}
    if price is None:
        # Whole values are to stay whole: where bytes have a price, features are cut in their stead.
        alone = 0.0 if whole_sequence else default_price(joints, segmented, cluster, sizes)
        price = alone / mesh.num_devices
    known = {} if known is None else known
    posed = {} if posed is None else posed
    costs = known.setdefault((mesh, micro_batch, seq), Costs(cluster, mesh, sizes))
    given = price, num_microbatches, shard_matmul_weights, whole_sequence, progress
    chains = []
    for found in orders_of(joints.values(), mesh, seq, order):
        key = mesh, micro_batch, seq, found, whole_sequence
        left = known.setdefault(key, _Left(posed.setdefault(key, Posed())))
        chains.append(_Chain(segmented, joints, costs, *given, found == MIRRORED, left))
    if mesh.num_devices == 1:
        return chains[0].whole()
    return min((chain.best() for chain in chains), key=lambda model: model.objective_us)


@dataclass
class _Left:
    """What chains of one order leave for others at other prices, by segment: the layouts of the cut
    before it, and the nodes of its ops. posed: what those at other costs have left, too."""

    posed: Posed
    offered: dict[str, tuple[Layout, ...]] = field(default_factory=dict)
    ops: dict[str, Ops] = field(default_factory=dict)


@dataclass
class _Chain:
    segmented: Segmented
    joints: dict[str, Graph]
    costs: Costs
    price: float
    num_microbatches: int
    shard_matmul_weights: bool
    whole_sequence: bool
    progress: Progress | None
    mirrored: bool
    left: "_Left"
    solved: dict[tuple, Sharding | float | None] = field(default_factory=dict)

    def whole(self) -> ShardedModel:
        """One device on the axis: everything whole, nothing to solve."""
        names = dict.fromkeys(i.segment for i in self.segmented.instances)
        lowered = {name: self._whole(name) for name in names}
        instances = tuple(i.segment for i in self.segmented.instances)
        total = sum(lowered[name].objective_us for name in instances)
        coverage = _distinct(line for name in names for line in self._coverage(name))
        return ShardedModel(lowered, instances, total, total, coverage, self.price)

    def _coverage(self, name: str) -> tuple[str, ...]:
        return ops_of(self.joints[name], self.costs, False).coverage

    def _whole(self, name: str) -> Lowered:
        graph = self.joints[name]
        placements = {n: replicated(len(v.shape)) for n, v in graph.values.items()}
        cost = objective_us(graph, placements, self.costs, self.price, self.num_microbatches)
        ends = [tuple(placements[i.value.name] for i in graph.inputs_of(k)) for k in CUTS]
        return Lowered(name, name, graph, placements, ends[0], ends[1], cost, cost, False)

    def best(self) -> ShardedModel:
        """The cheapest chain over common placements of tied parameters."""
        tied = self._tied()
        found: tuple[float, list[tuple]] | None = None
        for common in self._common(tied):
            chain = self._cheapest(self._pins(tied, common), found[0] if found else math.inf)
            if chain is not None:
                found = chain
        if found is None:
            names = sorted({f"{self._segment(k)}.{n}" for homes in tied for k, n in homes})
            more = f" and {len(names) - _NAMED} others" if len(names) > _NAMED else ""
            raise InfeasibleError(
                f"tied parameters {', '.join(names[:_NAMED])}{more} have no common placement; drop "
                "a pin, or take another size of the tensor or context axis"
            )
        return self._model(found[1])

    def _common(self, tied: list[list[tuple[int, str]]]) -> Iterable[tuple[Common, ...]]:
        """Placements of all tied parameters to try."""
        each = [self._candidates(homes) for homes in tied]
        if math.prod(map(len, each)) <= MAX_COMMON:
            return product(*each)
        most = max(len(self._layouts(index)) for index in range(len(self.segmented.instances)))
        sides = product(range(most), repeat=2)
        return dict.fromkeys(tuple(self._own(*homes[0], *s) for homes in tied) for s in sides)

    def _own(self, index: int, name: str, *sides: int) -> Common:
        """What a segment without pins chooses for a parameter between two layouts, by number."""
        graph = self.joints[self._segment(index)]
        offered = (self._layouts(index), self._layouts(index + 1))
        chosen = (found[min(k, len(found) - 1)] for found, k in zip(offered, sides, strict=True))
        found = self._found((self._segment(index), *chosen, (), ()))
        grad = Joint(graph).grads[name]
        placed = found.made[name]
        return placed, found.outputs[graph.outputs.index(grad)] or placed if grad else placed

    def _segment(self, index: int) -> str:
        return self.segmented.instances[index].segment

    def _tied(self) -> list[list[tuple[int, str]]]:
        """Homes (instance, input name) of each parameter that has several."""
        homes: dict[str, list[tuple[int, str]]] = {}
        for index, instance in enumerate(self.segmented.instances):
            inputs = self.joints[instance.segment].inputs_of("param")
            for param, item in zip(instance.params, inputs, strict=True):
                homes.setdefault(param, []).append((index, item.value.name))
        return [found for found in homes.values() if len(found) > 1]

    def _candidates(self, homes: list[tuple[int, str]]) -> list[Common]:
        """(placement, gradient's placement) pairs that some home would choose."""
        found: dict[tuple[Placement, Placement], None] = {}
        for index, name in homes:
            demands = Demands(num_microbatches=self.num_microbatches, mirrored=self.mirrored)
            segment = self._segment(index)
            nodes, _ = nodes_of(self.joints[segment], self.costs, demands, self._ops(segment))
            (node,) = (n for n in nodes if n.name == f"param %{name}")
            for choice in node.choices:
                (placed,) = choice.strategy.outputs
                grad = choice.strategy.inputs[0] if choice.strategy.inputs else placed
                found[placed, grad] = None
        return list(found)

    def _pins(
        self, tied: list[list[tuple[int, str]]], common: tuple[Common, ...]
    ) -> dict[int, tuple[Pins, Pins]]:
        """Pins of parameters and gradients per instance."""
        found: dict[int, tuple[Pins, Pins]] = {}
        for homes, (placed, grad) in zip(tied, common, strict=True):
            for index, name in homes:
                params, grads = found.get(index, ((), ()))
                found[index] = ((*params, (name, placed)), (*grads, (name, grad)))
        return found

    def _cheapest(
        self, pins: dict[int, tuple[Pins, Pins]], below: float
    ) -> tuple[float, list[tuple]] | None:
        """Cheapest layouts of the cuts: (total us, key of the solution of each instance).

        None where no chain costs less than `below`. A problem whose relaxation is fractional is
        branched on once a cheapest chain of bounds holds it.
        """
        while (chain := self._viterbi(pins)) is not None and chain[0] < below:
            bounded = {key for key in chain[1] if isinstance(self.solved[key], float)}
            if not bounded:
                return chain
            for key in dict.fromkeys(chain[1]):
                if key in bounded:
                    self._solve(key)
        return None

    def _viterbi(self, pins: dict[int, tuple[Pins, Pins]]) -> tuple[float, list[tuple]] | None:
        """The cheapest chain of what each segment costs, or of a bound below it."""
        best: dict[Layout, tuple[float, list[tuple]]] = {(): (0.0, [])}
        for index in range(len(self.segmented.instances)):
            arrivals: dict[Layout, tuple[float, list[tuple]]] = {}
            for side_in, side_out in product(best, self._layouts(index + 1)):
                key = (self._segment(index), side_in, side_out, *pins.get(index, ((), ())))
                cost = self._bound(key)
                if cost is None:
                    continue
                total = best[side_in][0] + cost
                if side_out not in arrivals or total < arrivals[side_out][0]:
                    arrivals[side_out] = (total, [*best[side_in][1], key])
            best = arrivals
        return min(best.values(), key=lambda found: found[0], default=None)

    def _layouts(self, index: int) -> tuple[Layout, ...]:
        """The layouts of the cut before an instance; past the last one nothing crosses."""
        if index == len(self.segmented.instances):
            return ((),)
        name = self._segment(index)
        offered = self.left.offered
        if name not in offered:
            offered[name] = layouts_of(
                self.joints[name], self.costs, self.mirrored, self.whole_sequence
            )
        return offered[name]

    def _bound(self, key: tuple) -> float | None:
        """What one segment costs under its boundaries and pins, or a bound below it where that
        takes branching; None when it has no placement."""
        if key not in self.solved:
            self.solved[key] = self._asked(key, shard_or_bound)
        found = self.solved[key]
        return found.objective_us if isinstance(found, Sharding) else found

    def _solve(self, key: tuple) -> Sharding | None:
        """The solution of one segment under its boundaries and pins; None when there is none."""
        self._bound(key)
        if isinstance(self.solved[key], float):
            self.solved[key] = self._asked(key, shard)
        found = self.solved[key]
        assert not isinstance(found, float)
        return found

    def _found(self, key: tuple) -> Sharding:
        """The solution of a key that has one."""
        found = self._solve(key)
        assert found is not None
        return found

    def _asked(self, key: tuple, of: Callable[..., Found]) -> Found | None:
        name, side_in, side_out, params, grads = key
        if self.progress is not None:
            order = ", mirrored" if self.mirrored else ""
            sides = f"{format_layout(side_in)} in, {format_layout(side_out)} out"
            self.progress(f"placements of {name}, {sides}{order}")
        demands = Demands(
            side_in, side_out, params, grads, self.shard_matmul_weights, self.num_microbatches,
            self.mirrored,
        )  # fmt: skip
        given = self.joints[name], self.costs, self.price, demands
        try:
            return of(*given, self._ops(name), self.left.posed.programs.setdefault(name, {}))
        except InfeasibleError as error:
            if params:
                return None
            if self.shard_matmul_weights:
                raise _unsharded(name, self.joints[name], self.costs.mesh) from error
            raise

    def _ops(self, name: str) -> Ops:
        """Return the nodes of a segment's ops, which all of its boundaries share."""
        ops, offers, graph = self.left.ops, self.left.posed.offers, self.joints[name]
        if name not in offers:
            given = self.costs.mesh, self.costs.sizes, self.mirrored, self.whole_sequence
            offers[name] = offers_of(graph, *given)
        if name not in ops:
            ops[name] = ops_of(graph, self.costs, self.mirrored, offers[name])
        return ops[name]

    def _model(self, keys: list[tuple]) -> ShardedModel:
        names = _piece_names(keys)
        lowered = {name: self._lowered(name, key) for key, name in names.items()}
        chosen = [self._found(key) for key in keys]
        return ShardedModel(
            lowered,
            tuple(names[key] for key in keys),
            sum(s.objective_us for s in chosen),
            sum(s.bound_us for s in chosen),
            _distinct(line for s in chosen for line in s.coverage),
            self.price,
        )

    def _lowered(self, name: str, key: tuple) -> Lowered:
        segment, side_in, side_out, *_ = key
        found = self._found(key)
        graph, placements = lower(self.joints[segment], found, self.costs)
        graph = Graph(name, graph.inputs, graph.ops, graph.outputs)
        return Lowered(
            name,
            segment,
            graph,
            placements,
            side_in,
            side_out,
            found.objective_us,
            found.bound_us,
            found.branched,
        )


def _piece_names(keys: list[tuple]) -> dict[tuple, str]:
    """A name per distinct solution: the segment's own for the most frequent, then `_2`, `_3`."""
    counts: Counter[str] = Counter()
    segments = {key[0] for key in keys}
    names = {}
    for key, _ in Counter(keys).most_common():
        counts[key[0]] += 1
        name = key[0]
        while counts[key[0]] > 1 and (name == key[0] or name in segments):
            name = f"{key[0]}_{counts[key[0]]}"
            counts[key[0]] += name in segments
        names[key] = name
    return {key: names[key] for key in dict.fromkeys(keys)}


def _distinct(lines: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))


def _unsharded(name: str, graph: Graph, mesh: Mesh) -> InfeasibleError:
    """Return what to say of a segment that has no placement with matmul weights cut."""
    weights = [i.ref for i in graph.inputs_of("param") if is_matmul_weight(graph, i.value.name)]
    named = ", ".join([*weights[:_NAMED], *["..."] * (len(weights) > _NAMED)])
    return InfeasibleError(
        f"shard_weights=1: {name} has no placement with its {len(weights)} weights of matmuls "
        f"({named}) cut over {mesh.only(TENSOR)} wherever ops read them; leave shard_weights out"
    )
