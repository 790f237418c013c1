"""A plan's step as another stack would run its layout: a software profile beside the cluster.

A profile says where a stack differs from the programs that we emit; software.toml beside this file
has some, and a user's file the same form. Each difference is priced by the planner's own cost of
the work named; nothing is fitted.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.graph import Op
from meshwright.ir.mesh import TENSOR
from meshwright.ir.ops.registry import definition
from meshwright.ir.plan import Piece, Plan
from meshwright.ir.sizes import num_elements

from ..cost.graph_work import OpWork
from ..cost.op_cost import Costs
from ..cost.phase_work import PhaseWork, functions_of
from ..cost.piece_cost import Phase, PieceWork, WorkTable, op_us
from ..hardware.cluster import Cluster, ClusterError
from .simulator import simulate
from .step_model import Unit, precision_of_plan, step_model

HEADER = "# meshwright software v1"
BUILT_IN = Path(__file__).with_name("software.toml")
Phases = tuple[Phase, Phase]


@dataclass(frozen=True)
class Software:
    """Ways of a stack to run a layout.

    fused: whether a compiler makes pointwise ops one kernel; else each reads and writes memory by
    itself. kernel_us: of the host's time, to issue a kernel where nothing is compiled.
    attention_share: of the rate of our attention that the stack's own reaches. attention_passes:
    reads and writes of all scores in forward and in backward, of an attention that keeps them in
    memory; empty where it does not. loss_passes: the same of all logits, of a loss that is not
    computed in chunks. adds_apart: whether gradients of micro-batches are added by kernels of
    their own. reduces_once: whether gradients travel once a step under ZeRO 3. overlaps_tensor:
    whether collectives of a split layer run beside the matmuls they feed, in a piece a rank, the
    first of which is waited for.
    """

    name: str
    fused: bool = True
    kernel_us: float = 0.0
    attention_share: float = 1.0
    attention_passes: tuple[int, ...] = ()
    loss_passes: tuple[int, ...] = ()
    adds_apart: bool = False
    reduces_once: bool = False
    overlaps_tensor: bool = False


def read_software(spec: str) -> Software:
    """Return a built-in profile by its name, or that of a file. Raises ClusterError."""
    known = _read(BUILT_IN)
    if spec in known:
        return known[spec]
    path = Path(spec)
    if path.suffix != ".toml":
        raise ClusterError(
            f"--software {spec}: unknown; give {', '.join(known)}, or a .toml file of that form"
        )
    found = list(_read(path).values())
    if len(found) != 1:
        raise ClusterError(f"--software {path}: give one [NAME] in it, {len(found)} are there")
    return found[0]


def _read(path: Path) -> dict[str, Software]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ClusterError(f"--software {path} cannot be read: {reason}") from None
    first = text.partition("\n")[0].strip()
    if first != HEADER:
        raise ClusterError(
            f"--software {path}: the first line must be {HEADER!r}, found {first[:40]!r}"
        )
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"--software {path}: not TOML: {error}") from None
    return {name: _software(path, name, table) for name, table in tables.items()}


def _software(path: Path, name: str, table: object) -> Software:
    if not isinstance(table, Mapping):
        raise ClusterError(f"--software {path}: {name} = {table!r}; write [{name}] and its entries")
    forms = {item.name: item for item in fields(Software) if item.name != "name"}
    found = {key: value for key, value in table.items() if key != "sources"}
    for key, value in found.items():
        where = f"--software {path}: [{name}] {key}"
        if key not in forms:
            raise ClusterError(f"{where}: unknown; give {', '.join(forms)}, or sources")
        if not _fits(key, value):
            raise ClusterError(f"{where} is {value!r}; {_WANTED.get(key, 'give true or false')}")
    found |= {key: tuple(found[key]) for key in _PASSES if key in found}
    return Software(name, **found)


_PASSES = ("attention_passes", "loss_passes")
_WANTED = {
    "kernel_us": "give us of 0 or more",
    "attention_share": "give a share above 0",
} | dict.fromkeys(_PASSES, "give two numbers of passes, of forward and backward, such as [2, 4]")


def _fits(key: str, value: object) -> bool:
    if key in ("kernel_us", "attention_share"):
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return value > 0 or (value == 0 and key == "kernel_us")
    if key in _PASSES:
        counts = isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
        return counts and isinstance(value, list) and len(value) == 2
    return isinstance(value, bool)


def step_us(
    plan: Plan,
    cluster: Cluster,
    software: Software,
    more: Callable[[PieceWork, Piece, Costs], PieceWork] = lambda work, piece, costs: work,
) -> float:
    """Return the step of a plan's layout under a profile, in us. more: what else differs in the
    work of a piece."""
    given = cluster, plan.mesh.compute, plan.sizes
    costs, wide = Costs(*given), precision_of_plan(plan).wide_grads
    issued = WorkTable(Costs(*given, wide_grads=wide))  # no micro-batch is recorded
    model = step_model(plan, cluster, issued)
    pieces = {piece.name: piece for piece in plan.pieces}
    works = {i.name: pieces[i.piece] for i in plan.instances}
    known: dict[str, PieceWork] = {}
    # Of what was made in the first micro-batch nothing is added: read both, write the sum.
    later = 1 - 1 / plan.num_microbatches
    adding = 3 * later / cluster.device.hbm_bytes_per_s * 1e6 * software.adds_apart

    def changed(unit: Unit) -> Unit:
        piece = works[unit.name]
        if piece.name not in known:
            work = _work(unit.work, piece, costs, software)
            known[piece.name] = more(work, piece, costs)
        accumulate = unit.accumulate_us + adding * unit.work.added_bytes
        return replace(unit, work=known[piece.name], accumulate_us=accumulate)

    stages = tuple(tuple(map(changed, stage)) for stage in model.stages)
    reduces = model.reduces_every_microbatch and not software.reduces_once
    return simulate(replace(model, stages=stages, reduces_every_microbatch=reduces)).step_us


def _work(work: PieceWork, piece: Piece, costs: Costs, software: Software) -> PieceWork:
    functions = functions_of(piece.graph, piece.saved)
    parts = functions.forward, functions.backward
    phases: Phases = work.forward, work.backward
    if not software.fused:
        phases = tuple(  # type: ignore[assignment]
            replace(
                phase,
                pointwise_us=eager_us(part, piece, costs),
                call_us=software.kernel_us * _issued(part),
            )
            for phase, part in zip(phases, parts, strict=True)
        )
    if software.attention_share != 1.0:
        phases = tuple(  # type: ignore[assignment]
            replace(phase, attention_us=phase.attention_us / software.attention_share)
            for phase in phases
        )
    if software.attention_passes:
        moved = [_score_us(part, piece, costs, software.attention_passes) for part in parts]
        phases = tuple(  # type: ignore[assignment]
            replace(phase, attention_us=phase.attention_us + us)
            for phase, us in zip(phases, moved, strict=True)
        )
    if software.overlaps_tensor:
        pieces = costs.mesh.count(TENSOR)
        phases = tuple(  # type: ignore[assignment]
            replace(phase, collective_us=phase.collective_us / pieces) for phase in phases
        )
    if software.loss_passes:
        phases = _whole_loss(phases, parts, piece, costs, software.loss_passes)
    return replace(work, forward=phases[0], backward=phases[1])


def eager_us(work: PhaseWork, piece: Piece, costs: Costs) -> float:
    """Return the time of pointwise ops and reductions of a function, each a kernel of its own."""
    total = 0.0
    for op in work.graph.ops:
        if not definition(op).fused:
            continue
        values = tuple(piece.graph.values[name] for name in op.inputs if name)
        ins, outs = (tuple(piece.placements[v.name] for v in vs) for vs in (values, op.outputs))
        total += costs.op_us(op, ins, outs, OpWork(0, op.output.dtype, values, op.outputs))
    return total


def _issued(work: PhaseWork) -> int:
    """Return the kernels that a host issues for a function that is not compiled."""
    return sum(not (definition(op).free or definition(op).source) for op in work.graph.ops)


def _score_us(work: PhaseWork, piece: Piece, costs: Costs, passes: tuple[int, ...]) -> float:
    """Return the time of the passes over scores [B, H, S, K] of a function's attentions, which are
    in the dtype of the queries. A function may compute those of forward again."""
    total = 0.0
    for op in work.graph.ops:
        if (at := definition(op).queries) is None:
            continue
        queries, keys = (piece.graph.values[name] for name in op.inputs[at : at + 2])
        *_, positions, _ = keys.shape
        each = costs.local_bytes(queries, piece.placements[queries.name]) / queries.shape[-1]
        total += passes[definition(op).backward] * each * costs.number(positions)
    return total / costs.cluster.device.hbm_bytes_per_s * 1e6


def _whole_loss(
    phases: Phases,
    parts: tuple[PhaseWork, PhaseWork],
    piece: Piece,
    costs: Costs,
    passes: tuple[int, ...],
) -> Phases:
    """One matmul for the logits, two backward, and the loss's passes over all of them."""
    losses = [[op for op in p.graph.ops if definition(op).kind == "loss"] for p in parts]
    if not losses[0]:
        return phases
    (loss,) = losses[0]
    pass_us = _logits_bytes(loss, piece, costs) / costs.cluster.device.hbm_bytes_per_s * 1e6
    ours = [
        sum(op_us(op, part, piece.placements, costs) for op in ops)
        for ops, part in zip(losses, parts, strict=True)
    ]
    matmul_us = ours[0] - pass_us  # the statistics read the logits once
    theirs = matmul_us, 2 * matmul_us
    forward, backward = (
        replace(
            phase,
            matmul_us=phase.matmul_us - own + other,
            pointwise_us=phase.pointwise_us + count * pass_us,
        )
        for phase, own, other, count in zip(phases, ours, theirs, passes, strict=True)
    )
    return forward, backward


def _logits_bytes(loss: Op, piece: Piece, costs: Costs) -> float:
    """Return the bytes of a rank's logits [B, S, V], in the dtype of what they are made of."""
    x, weight = (piece.graph.values[name] for name in loss.inputs[:2])
    rows = weight.shape[0]
    whole = costs.number(num_elements((*x.shape[:-1], rows))) * ITEM_BYTES[x.dtype]
    return whole / costs.mesh.num_devices
