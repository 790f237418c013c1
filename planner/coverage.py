"""What a prediction rests on: readings, data sheets, assumptions; and what fell back."""

from collections.abc import Iterator

from meshwright.ir.plan import Plan

from .cluster import Cluster
from .memory import RESERVED_SHARE
from .simulator import OVERLAP_PRICE
from .space import unproven


def coverage(plan: Plan, cluster: Cluster) -> list[str]:
    """Lines for a report; none is ever left out, so that no number looks surer than it is."""
    return [
        f"  {line}"
        for line in (
            *_rates(plan, cluster),
            *_links(cluster),
            *_schedules(plan, cluster),
            *_rest(plan),
        )
    ]


def _rates(plan: Plan, cluster: Cluster) -> Iterator[str]:
    device = cluster.device
    if plan.dtype not in dict(device.matmul_flops_per_s):
        yield f"assumed: {device.name} has no rate for {plan.dtype}, its slowest one is taken"
    if device.efficiency == 1.0:
        yield f"measured: matmul rates of {device.name}"
    else:
        yield (
            f"assumed: large matmuls on {device.name} reach {device.efficiency:.0%} of the data "
            "sheet's rate"
        )
    if device.attention_flops_per_s is None:
        yield f"assumed: attention on {device.name} runs at its matmul rate"
    else:
        how = "measured" if device.efficiency == 1.0 else "assumed"
        yield f"{how}: attention on {device.name} at rates of its own, forward and backward"


def _links(cluster: Cluster) -> Iterator[str]:
    for level in cluster.levels:
        if level.curves:
            names = sorted({f"{c.collective} over {c.group}" for c in level.curves})
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
            yield f"measured: link {level.name}: {shown}"
        else:
            yield f"assumed: link {level.name} by latency and bandwidth alone, no curve"


def _schedules(plan: Plan, cluster: Cluster) -> Iterator[str]:
    for name in unproven(cluster):
        if plan.schedule_name == name:
            yield f"not proven: {name} did not finish a step on four H200s; it passes on CPUs"
        elif plan.mesh.size("pp") > 1:
            yield f"left out: {name}, not proven on GPUs; the pin schedule={name} tries it"


def _rest(plan: Plan) -> Iterator[str]:
    yield f"assumed: compute beside a collective takes {OVERLAP_PRICE:.0%} of the shared time more"
    yield f"assumed: {RESERVED_SHARE:.0%} of the memory for the driver, links and fragments"
    alone = [p.name for p in plan.pieces if sum(i.piece == p.name for i in plan.instances) == 1]
    yield f"segments that did not repeat: {', '.join(alone) or 'none'}"
    yield from (f"fell back: {line}" for line in plan.coverage)
    if not plan.coverage:
        yield "fell back: nothing"
