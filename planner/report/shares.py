"""What a step is spent on: compute, memory traffic, recompute, the bubble, and each link."""

from collections import Counter

from meshwright.ir.mesh import Mesh

from ..hardware.cluster import Cluster
from ..simulate.simulator import Timeline
from ..simulate.step_model import StepModel, Unit

# Kinds of time. Of links the name follows.
COMPUTE, MEMORY, AGAIN, BUBBLE = "compute", "memory traffic", "recompute", "bubble"
HOST = "host"  # the device waits for functions to be issued


def shares_of(
    model: StepModel, timeline: Timeline, cluster: Cluster, mesh: Mesh
) -> tuple[tuple[str, float], ...]:
    """Return the shares of a step by kind, as the mean over pp ranks.

    A rank's step is the compute of its actions, waiting inside them, the bubble, and the end, which
    is the update and what of the gradients' reduction nothing hides.
    """
    ranks = range(len(timeline.busy_us))
    found: dict[str, float] = {}

    def add(kind: str, us: float) -> None:
        share = max(us, 0.0) / timeline.step_us / len(ranks)
        found[kind] = found.get(kind, 0.0) + share

    inner, outer = _link(cluster, mesh.compute), _link(cluster, mesh)
    for rank in ranks:
        mine = [s for s, r in enumerate(model.stage_ranks) if r == rank]
        units = [unit for s in mine for unit in model.stages[s]]
        again = model.num_microbatches * sum(unit.work.again_us for unit in units)
        kinds = _busy(units, model.num_microbatches)
        busy, bubble = timeline.busy_us[rank], timeline.bubble_us(rank)
        end = timeline.step_us - busy - timeline.exposed_us[rank] - max(bubble, 0.0)
        update = min(model.optimizer_us[rank], max(end, 0.0))
        add(COMPUTE, kinds[COMPUTE] - again)
        add(AGAIN, again)
        add(MEMORY, busy - kinds[COMPUTE] - kinds["links"] - kinds[HOST] + update)
        add(HOST, kinds[HOST])
        add(f"link {inner}", kinds["links"])
        add(BUBBLE, bubble)
        add(f"link {outer}", timeline.exposed_us[rank] + end - update)
    return tuple(sorted(found.items(), key=lambda item: -item[1]))


def _busy(units: list[Unit], microbatches: int) -> dict[str, float]:
    """Return us of a step's actions in matmuls with attention, and in collectives among them."""
    counts = Counter(id(unit.work) for unit in units)
    works = {id(unit.work): unit.work for unit in units}
    phases = [(n, p) for k, n in counts.items() for p in (works[k].forward, works[k].backward)]

    def total(*names: str) -> float:
        return microbatches * sum(n * getattr(p, name) for n, p in phases for name in names)

    return {
        COMPUTE: total("matmul_us", "attention_us"),
        "links": total("collective_us"),
        HOST: total("waiting_us"),
    }


def _link(cluster: Cluster, mesh: Mesh) -> str:
    return cluster.level(min(mesh.num_devices, cluster.num_devices)).name
