"""The plan of one rank for a captured model, made without a search, to be run against the module.

Every value is whole. All parameters of a dtype lie in one bucket, frozen ones in another. What the
backward keeps, how it is cut, and how many micro-batches there are is given.
"""

from dataclasses import dataclass

from meshwright.ir.graph import Graph
from meshwright.ir.mesh import make_mesh
from meshwright.ir.phases import Joint, forward_ops
from meshwright.ir.placement import replicated
from meshwright.ir.plan import Bucket, Entry, InstancePlan, Param, Piece, Plan
from meshwright.ir.schedule import Action
from meshwright.ir.sizes import evaluate, num_elements
from meshwright.ir.traced import Traced

_TRAINED, _FROZEN = "trained", "frozen"


@dataclass(frozen=True)
class Variant:
    """How a program runs a batch: sizes of a micro-batch, their number, and its backward.

    keeps: whether forward keeps all that backward reads, or nothing. splits: whether backward runs
    in two, gradients of inputs first.
    """

    rows: int
    seq: int
    microbatches: int
    keeps: bool
    splits: bool = False

    def __str__(self) -> str:
        kept = "all values kept" if self.keeps else "all values recomputed"
        split = ", backward in two" if self.splits else ""
        return f"{self.microbatches} x {self.rows} rows of {self.seq} tokens, {kept}{split}"


def one_rank_plan(traced: Traced, variant: Variant) -> Plan:
    """Return the plan of a captured model on one rank."""
    graphs = traced.joints
    params = _params(traced)
    frozen = {i.ref for i in traced.graph.inputs_of("param") if not i.trainable}
    members: dict[str, list[Param]] = {}
    for param in params:
        kind = _FROZEN if param.name in frozen else _TRAINED
        members.setdefault(f"{kind}.{param.dtype}", []).append(param)
    buckets = tuple(_bucket(name, own) for name, own in members.items())
    return Plan(
        model=traced.model,
        dtype=traced.dtype,
        graph_hash=traced.graph_hash,
        cluster="cpu:1",
        vocab_size=traced.vocab_size,
        mesh=make_mesh({}),
        global_batch=variant.rows * variant.microbatches,
        micro_batch=variant.rows,
        num_microbatches=variant.microbatches,
        seq=variant.seq,
        zero=0,
        recompute="none" if variant.keeps else "all",
        schedule_name="1f1b",
        flops_per_token=0.0,
        coverage=(),
        context=traced.segmented.context,
        constants=traced.constants,
        params=params,
        pieces=tuple(_piece(name, graph, variant.keeps) for name, graph in graphs.items()),
        instances=_instances(traced, buckets),
        buckets=buckets,
        stage_ranks=(0,),
        schedule=(_actions(variant),),
        reduce_dtype=traced.dtype,
    )


def _params(traced: Traced) -> tuple[Param, ...]:
    return tuple(
        Param(i.ref, i.value.dtype, i.value.shape, replicated(len(i.value.shape)), i.init)
        for i in traced.graph.inputs_of("param")
    )


def _piece(name: str, graph: Graph, keeps: bool) -> Piece:
    placements = {n: replicated(len(v.shape)) for n, v in graph.values.items()}
    return Piece(name, graph, placements, _read_by_backward(graph) if keeps else ())


def _read_by_backward(graph: Graph) -> tuple[str, ...]:
    """Names of the values that forward makes and backward reads, in the graph's order."""
    made = {v.name for op in forward_ops(graph) for v in op.outputs}
    backward = [op for op in graph.ops if op.output.name not in made]
    read = {n for op in backward for n in op.inputs} | set(Joint(graph).results)
    return tuple(n for n in graph.values if n in made & read)


def _instances(traced: Traced, buckets: tuple[Bucket, ...]) -> tuple[InstancePlan, ...]:
    homes = {e.param: b.name for b in buckets for e in b.entries}
    return tuple(
        InstancePlan(
            f"{item.segment}.{number}",
            item.segment,
            0,
            item.params,
            tuple(dict.fromkeys(homes[p] for p in item.params)),
            item.first_draw,
        )
        for number, item in enumerate(traced.segmented.instances)
    )


def _bucket(name: str, params: list[Param]) -> Bucket:
    entries, offset = [], 0
    for param in params:
        entries.append(Entry(param.name, offset, (), len(param.shape) >= 2))
        offset += evaluate(num_elements(param.shape), {})
    return Bucket(name, params[0].dtype, offset, (0,), tuple(entries), name.startswith(_TRAINED))


def _actions(variant: Variant) -> tuple[Action, ...]:
    """All forwards, then all backwards, where those are in two all of the first halves first."""
    steps = range(variant.microbatches)
    forward = [Action("F", 0, n) for n in steps]
    kinds = ("I", "W") if variant.splits else ("B",)
    backward = [Action(kind, 0, n) for kind in kinds for n in steps]
    return (*forward, *backward, Action("STEP"))
