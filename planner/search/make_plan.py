"""From a traced model, a cluster and pins to a Plan.

Order: mesh, micro-batch, placements (sharding ILP), saved values, stage cuts, buckets, schedule.
"""

import math
from collections.abc import Callable, Iterable

from meshwright.ir.errors import PlanError
from meshwright.ir.graph import Graph
from meshwright.ir.mesh import (
    AXIS_OF,
    BATCH,
    DATA,
    PIPELINE,
    REPLICA,
    ROLES,
    STORAGE,
    TENSOR,
    Mesh,
    make_mesh,
)
from meshwright.ir.ops.questions import flops
from meshwright.ir.phases import Joint, forward_ops
from meshwright.ir.plan import Piece, Plan, silent_stages
from meshwright.ir.sizes import evaluate
from meshwright.ir.traced import Traced

from ..hardware.cluster import Cluster
from ..hardware.topology import OUTER
from ..pipeline.partition import cut_stages
from ..pipeline.schedules import check_name, check_sizes, chunks_of, make_schedule, stage_ranks
from ..remat.rules import SavedSet, check_rule, saved_values
from ..sharding.chain import ShardedModel, shard_model
from ..sharding.sub_axes import inner_ranks
from ..simulate.predict import predict, with_costs
from ..simulate.step_model import STATES
from ..units import counted
from .instances import instances_of, params_of, with_variants
from .pins import Pins, pins_for
from .precision import resolve_precision, resolve_reduce_dtype, resolve_rounding

Progress = Callable[[str], None]


def make_plan(
    traced: Traced,
    cluster: Cluster,
    *,
    seq: int,
    global_batch: int,
    pins: Pins,
    progress: Progress = lambda _: None,
    sharded: ShardedModel | None = None,
    saved: tuple[SavedSet, ...] | None = None,
) -> Plan:
    """The plan for `global_batch` rows of `seq` tokens a step on every device of the cluster.

    Decisions that no pin fixes take defaults; `search` compares them instead. sharded: placements
    already found. saved: the values that each instance keeps, found with them. Raises PlanError
    when the pins contradict each other or the sizes.
    """
    pins = pins_for(traced, pins)
    mesh = resolve_mesh(cluster.num_devices, pins, traced.joints.values())
    micro_batch, num_microbatches = resolve_micro_batch(global_batch, mesh, pins)
    pp, (name, chunks) = mesh.count(PIPELINE), resolve_schedule(pins)
    check_sizes(name, pp, num_microbatches)
    batches = counted(num_microbatches, "micro-batch")
    progress(f"mesh {mesh}; {batches} of {counted(micro_batch, 'row')}")
    sharded = sharded or shard_model(
        traced.segmented,
        traced.joints,
        mesh=mesh.compute,
        cluster=cluster,
        micro_batch=micro_batch,
        seq=seq,
        num_microbatches=num_microbatches,
        price=pins.price,
        shard_matmul_weights=bool(pins.shard_weights),
        whole_sequence=pins.shard_sequence == 0,
        order=pins.cp_order,
        progress=progress,
    )
    if pins.offload == "on" and saved is None:
        raise PlanError(
            f"offload={pins.offload}: which values wait in the host's memory is for the search to "
            "say; plan with it (search = true in a job file), or leave the pin out"
        )
    recompute = pins.recompute or "cheap"
    if saved is not None:
        sharded, kept = with_variants(sharded, saved)
    else:
        check_rule(recompute, [low.graph for low in sharded.lowered.values()])
        kept = {
            name: SavedSet(saved_values(low.graph, recompute))
            for name, low in sharded.lowered.items()
        }
    pieces = tuple(
        Piece(low.name, low.graph, low.placements, kept[low.name].saved, kept[low.name].offloaded)
        for low in sharded.lowered.values()
    )
    per_token = flops_per_token(traced, seq)
    flops = _instance_flops(traced, seq)
    stages = cut_stages(flops, pp * chunks, pins.cuts, even=chunks > 1)
    params = params_of(traced, sharded)
    instances, buckets = instances_of(traced, sharded, stages, params, pieces, mesh)
    silent = silent_stages(instances, buckets, pp * chunks)
    schedule = make_schedule(name, pp, num_microbatches, chunks, silent)
    progress(f"{len(pieces)} pieces, {len(instances)} instances, schedule {name}")
    plan = Plan(
        model=traced.model,
        dtype=traced.dtype,
        graph_hash=traced.graph_hash,
        cluster=cluster.name,
        devices_per_node=cluster.devices_per_node,
        device_type=cluster.device.type,
        device_name=cluster.device.name,
        vocab_size=traced.vocab_size,
        mesh=mesh,
        global_batch=global_batch,
        micro_batch=micro_batch,
        num_microbatches=num_microbatches,
        seq=seq,
        zero=pins.zero or 0,
        recompute=recompute,
        schedule_name=name,
        flops_per_token=per_token,
        precision=resolve_precision(traced.dtype, pins),
        reduce_dtype=resolve_reduce_dtype(traced.dtype, pins, num_microbatches),
        rounding=resolve_rounding(traced.dtype, pins),
        optimizer=resolve_optimizer(pins),
        coverage=(*traced.warnings, *sharded.coverage),
        context=traced.segmented.context,
        constants=traced.constants,
        params=params,
        pieces=pieces,
        instances=instances,
        buckets=buckets,
        stage_ranks=stage_ranks(name, pp, chunks),
        schedule=schedule,
    )
    return with_costs(plan, predict(plan, cluster), cluster)


def resolve_mesh(num_devices: int, pins: Pins, graphs: Iterable[Graph] = ()) -> Mesh:
    """The mesh of the pins; data takes the devices that no other axis is pinned to.

    graphs: whose KV heads may split the tensor axis.
    """
    sizes = {role: getattr(pins, name, None) or 1 for role, name in AXIS_OF.items()}
    sizes[DATA] = pins.dp or max(1, num_devices // math.prod(sizes.values()))
    inner = inner_ranks(graphs, sizes[TENSOR])
    mesh = make_mesh(sizes, ROLES[pins.outer or OUTER[0]], inner)
    if mesh.num_devices != num_devices:
        raise PlanError(_other_devices(sizes, num_devices, pins.dp is not None))
    if mesh.count(REPLICA) > 1 and (not pins.zero or mesh.count(*STORAGE) == 1):
        raise PlanError(
            f"rep={mesh.count(REPLICA)} with zero={pins.zero or 0} over dp x cp = "
            f"{mesh.count(*STORAGE)}: replicas copy sharded storage; pin zero=1, 2 or 3 and "
            f"dp above 1, or give these ranks to dp"
        )
    return mesh


def _other_devices(sizes: dict[str, int], num_devices: int, whole: bool) -> str:
    """Say that a mesh is not of as many devices as the cluster has. whole: data's ranks are pinned,
    too."""
    if whole:
        mesh = make_mesh(sizes)
        return (
            f"mesh {mesh} is {mesh.num_devices} devices, the cluster has {num_devices}; pin axes "
            f"whose product is {num_devices}"
        )
    pinned = {AXIS_OF[role]: size for role, size in sizes.items() if role != DATA and size > 1}
    count = math.prod(pinned.values())
    said = " ".join(f"{name}={size}" for name, size in pinned.items())
    others = f"pin axes whose product divides {num_devices}" if num_devices > 1 else "pin no axis"
    return (
        f"{said} takes {count} devices or a multiple, the cluster has {num_devices}; {others}, or "
        f"take a multiple of {count} devices"
    )


def resolve_schedule(pins: Pins) -> tuple[str, int]:
    """(name, stages of a rank); 1F1B unless pinned."""
    name = pins.schedule or ("interleaved" if (pins.chunks or 1) > 1 else "1f1b")
    check_name(name)
    return name, chunks_of(name, pins.chunks)


def stages_of_cuts(pins: Pins) -> int:
    """Return the stages that pinned cuts must make: pp times chunks, or as many as they do."""
    _, chunks = resolve_schedule(pins)
    assert pins.num_stages is not None
    return pins.pp * chunks if pins.pp and pins.schedule else pins.num_stages


def resolve_micro_batch(global_batch: int, mesh: Mesh, pins: Pins) -> tuple[int, int]:
    """(rows of one rank in a micro-batch, number of micro-batches)."""
    ranks, over = mesh.count(*BATCH), str(mesh.only(*BATCH))
    if global_batch % ranks:
        below = global_batch - global_batch % ranks
        near = f"{below} or {below + ranks}" if below else f"{ranks}"
        raise PlanError(
            f"global batch {global_batch} does not divide over {over}; take {near} rows"
        )
    rows = global_batch // ranks
    if pins.micro_batch is not None:
        if rows % pins.micro_batch:
            raise PlanError(
                f"micro_batch={pins.micro_batch} does not divide the {rows} rows of a "
                f"data-parallel rank (global batch {global_batch} over {over}); take one of "
                f"{', '.join(str(n) for n in range(1, rows + 1) if rows % n == 0)}, or pin dp"
            )
        return pins.micro_batch, rows // pins.micro_batch
    pp = mesh.count(PIPELINE)
    wanted = max(1, rows // (4 * pp)) if pp > 1 else min(rows, 8)
    size = max(n for n in range(1, wanted + 1) if rows % n == 0)
    return size, rows // size


def _forward_flops(graph: Graph, seq: int) -> float:
    sizes = {"B": 1, "S": seq}
    return float(sum(evaluate(flops(op, graph), sizes) for op in forward_ops(graph)))


def _instance_flops(traced: Traced, seq: int) -> list[float]:
    each = {name: _forward_flops(graph, seq) for name, graph in traced.joints.items()}
    return [each[i.segment] for i in traced.segmented.instances]


def flops_per_token(traced: Traced, seq: int) -> float:
    """Model flops of forward and backward per token: 3 x the forward's matmuls and attention.

    Equals 6 x matmul parameters + 6 L D S for causal attention (half of 12 L D S); the embedding
    lookup counts nothing. Gradients that frozen parameters do without count nothing either.
    """
    if all(i.trainable for i in traced.graph.inputs_of("param")):
        return 3.0 * sum(_instance_flops(traced, seq)) / seq
    each = {name: _trained_flops(graph, seq) for name, graph in traced.joints.items()}
    return sum(each[i.segment] for i in traced.segmented.instances) / seq


def _trained_flops(graph: Graph, seq: int) -> float:
    """Forward, and where backward runs as much for both operands, but for frozen weights."""
    sizes, backward = {"B": 1, "S": seq}, bool(Joint(graph).results)
    frozen = {i.value.name for i in graph.inputs_of("param") if not i.trainable}
    total = 0
    for op in forward_ops(graph):
        passes = 1 + backward + (backward and frozen.isdisjoint(op.inputs))
        total += passes * evaluate(flops(op, graph), sizes)
    return float(total)


def resolve_optimizer(pins: Pins) -> str:
    """`adamw` unless pinned."""
    name = pins.optimizer or "adamw"
    if name not in STATES:
        raise PlanError(f"optimizer={name}: give one of {', '.join(STATES)}")
    return name
