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
from meshwright.ir.placement import replicated, with_partial
from meshwright.ir.plan import Piece, Plan
from meshwright.planner.cost.op_cost import Costs, shard_on
from meshwright.planner.cost.piece_cost import Phase, PieceWork
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.software.profile import read_software
from meshwright.planner.software.step import step_us as software_step_us

# (all_gathers, reduce_scatters) of forward and of backward with its recomputation.
COLLECTIVES = {"attention": ((1, 1), (2, 4)), "ffn": ((1, 1), (2, 2))}
SOFTWARE = read_software("kempnerforge-2026")

Phases = tuple[Phase, Phase]


def step_us(plan: Plan, cluster: Cluster, compiled: bool = True) -> float:
    """Step time of the pinned plan with the differences above, in us."""
    return software_step_us(plan, cluster, replace(SOFTWARE, fused=compiled), _work)


def _work(work: PieceWork, piece: Piece, costs: Costs) -> PieceWork:
    phases = work.forward, work.backward
    if costs.mesh.count(TENSOR) > 1 and piece.name in COLLECTIVES:
        phases = _collectives(phases, piece, costs)
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
