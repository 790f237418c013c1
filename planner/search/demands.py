"""Pins against each other, the cluster and the batch: what no model could be planned under.

Asked before a model is traced, which takes seconds to minutes; what its segments decide (how many
stages there can be, names of values) is asked after.
"""

import sys

from meshwright.ir.errors import PlanError
from meshwright.ir.mesh import PIPELINE

from ..hardware.cluster import Cluster
from ..pipeline.partition import check_cuts
from ..pipeline.schedules import check_sizes
from .candidates import candidates
from .make_plan import (
    resolve_mesh,
    resolve_micro_batch,
    resolve_optimizer,
    resolve_schedule,
    stages_of_cuts,
)
from .pins import Pins
from .precision import resolve_reduce_dtype, resolve_rounding


def check_pins(
    cluster: Cluster, global_batch: int, dtype: str, pins: Pins, *, search: bool = True
) -> None:
    """Raise PlanError naming the demands that collide.

    search: whether decisions without a pin are free, or take their defaults.
    """
    resolve_rounding(dtype, pins)
    resolve_reduce_dtype(dtype, pins)
    resolve_optimizer(pins)
    if pins.cp_order is not None and cluster.num_devices == 1:
        raise PlanError(
            f"cp_order={pins.cp_order} needs cp=2 or more, the cluster has 1 device; take 2 or "
            "more, or leave cp_order out"
        )
    context = pins.cp if search else pins.cp or 1
    if pins.cp_order is not None and context == 1:
        raise PlanError(
            f"cp_order={pins.cp_order} with cp={context}: one rank holds the whole sequence; pin "
            "cp=2 or more, or leave cp_order out"
        )
    if not search:
        check_defaults(cluster, global_batch, pins)
        return
    resolve_schedule(pins)
    if pins.cuts is not None:
        check_cuts(pins.cuts, stages_of_cuts(pins))
    if next(candidates(cluster, global_batch, pins, sys.maxsize), None) is None:
        check_defaults(cluster, global_batch, pins)  # its messages say which demands collide
        raise PlanError(
            f"no mesh of {cluster.num_devices} devices divides a global batch of {global_batch} "
            "rows under these pins; drop one"
        )


def check_defaults(cluster: Cluster, global_batch: int, pins: Pins) -> int:
    """The pins with defaults for the rest; returns the number of stages. Raises PlanError."""
    mesh = resolve_mesh(cluster.num_devices, pins)
    _, num_microbatches = resolve_micro_batch(global_batch, mesh, pins)
    name, chunks = resolve_schedule(pins)
    check_sizes(name, mesh.count(PIPELINE), num_microbatches)
    stages = mesh.count(PIPELINE) * chunks
    if pins.cuts is not None:
        check_cuts(pins.cuts, stages)
    return stages
