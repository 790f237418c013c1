"""What KempnerForge runs otherwise than the program of the plan that its layout is pinned to.

From its public repository (KempnerInstitute/KempnerForge, at the sweep's commit 01b461a where that
is stored). Nothing is fitted: every cost is the planner's own for the work named.

- Gradients travel in float32 and once a step: distributed/parallel.py (default_mp_policy) and
  training/grad.py (maybe_no_sync). Its profile of 2026-04-07 (benchmarks/profiling) shows 205 such
  reductions in 5 steps of 41 units. Plans of ZeRO 3 reduce in every micro-batch.
- Under tp each projection gathers its input and reduces its input's gradient by itself:
  distributed/tensor_parallel.py. That profile, not compiled, has 12 all_gathers and 8
  reduce_scatters a block and micro-batch; torch.compile merges equal gathers, which leaves 6 and 8
  (tp_collectives.py counts them).
- The head is outside of the recomputed blocks (apply_ac), keeps its logits and gathers them whole
  on every tp rank (output_layouts=Replicate); scripts/train.py takes PyTorch's loss of them, not
  compiled.
- Autograd adds gradients in kernels of their own, in every micro-batch but the first.
- Row 8 ran without torch.compile: every op reads and writes memory on its own.
"""

from dataclasses import replace

from meshwright.ir.graph import Value
from meshwright.ir.mesh import AXIS_OF, TENSOR
from meshwright.ir.ops.registry import definition
from meshwright.ir.placement import replicated, with_partial
from meshwright.ir.plan import Piece, Plan
from meshwright.planner.cost.op_cost import Costs, shard_on
from meshwright.planner.cost.piece_cost import Phase, PieceWork
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.software.profile import Software
from meshwright.planner.software.step import step_us as software_step_us

# (all_gathers, reduce_scatters) of forward and of backward with its recomputation.
COLLECTIVES = {"attention": ((1, 1), (2, 4)), "ffn": ((1, 1), (2, 2)), "head": ((1, 0), (0, 1))}
# Reads and writes of all logits: log-softmax; backward the zeroed gradient, and log-softmax again.
LOSS_PASSES = (2, 4)

Phases = tuple[Phase, Phase]


def step_us(plan: Plan, cluster: Cluster, compiled: bool = True) -> float:
    """Step time of the pinned plan with the differences above, in us."""
    software = Software("kempnerforge", fused=compiled, adds_apart=True, reduces_once=True)
    return software_step_us(plan, cluster, software, _work)


def _work(work: PieceWork, piece: Piece, costs: Costs) -> PieceWork:
    phases = work.forward, work.backward
    if costs.mesh.count(TENSOR) > 1 and piece.name in COLLECTIVES:
        phases = _collectives(phases, piece, costs)
    if piece.name == "head":
        phases = _head(phases, piece, costs)
    return replace(work, forward=phases[0], backward=phases[1])


def _collectives(phases: Phases, piece: Piece, costs: Costs) -> Phases:
    value = piece.graph.inputs_of("activation")[0].value
    forward, backward = (_block_us(value, counts, costs) for counts in COLLECTIVES[piece.name])
    return replace(phases[0], collective_us=forward), replace(phases[1], collective_us=backward)


def _block_us(value: Value, counts: tuple[int, int], costs: Costs) -> float:
    """Collectives on an activation [B, S, D], sharded over the sequence between projections."""
    whole, sharded = replicated(3), shard_on(3, 1, AXIS_OF[TENSOR])
    gather = costs.redistribute_us(value, sharded, whole)
    reduce = costs.redistribute_us(value, with_partial(whole, AXIS_OF[TENSOR], "sum"), sharded)
    assert gather is not None and reduce is not None
    return counts[0] * gather + counts[1] * reduce


def _head(phases: Phases, piece: Piece, costs: Costs) -> Phases:
    """One matmul for the logits, two backward, and the loss's passes over all of them."""
    forward, backward = phases
    logits = _logits(piece)
    pass_us = costs.full_bytes(logits) / costs.cluster.device.hbm_bytes_per_s * 1e6
    gather_us = 0.0
    if costs.mesh.count(TENSOR) > 1:
        gather_us = (
            costs.redistribute_us(logits, shard_on(3, 2, AXIS_OF[TENSOR]), replicated(3)) or 0.0
        )
    matmul_us = forward.matmul_us - pass_us  # which the plan's own statistics make
    return (
        replace(
            forward,
            matmul_us=matmul_us,
            pointwise_us=forward.pointwise_us + LOSS_PASSES[0] * pass_us,
            collective_us=forward.collective_us + gather_us,
        ),
        replace(
            backward,
            matmul_us=2 * matmul_us,
            pointwise_us=backward.pointwise_us + LOSS_PASSES[1] * pass_us,
        ),
    )


def _logits(piece: Piece) -> Value:
    """What linear_cross_entropy never holds whole: [B, S, V] in the dtype of its input."""
    loss = next(op for op in piece.graph.ops if definition(op).passing_output is not None)
    x, weight = (piece.graph.values[name] for name in loss.inputs[:2])
    return Value("logits", x.dtype, (*x.shape[:2], weight.shape[0]))
