"""Clusters of random costs: what is fast on them differs, so placements of every kind come out.

On a real part's costs models this small are fastest replicated, and the law would see little else.
"""

import random
from dataclasses import replace

from equivalence.cases import Case

from meshwright.planner.hardware.catalogue import CPU
from meshwright.planner.hardware.cluster import COLLECTIVES, Cluster, Curve
from meshwright.planner.hardware.cluster_file import parse_cluster


def cluster_of(case: Case) -> Cluster:
    """The catalogue's CPU, or costs drawn at random."""
    cluster = parse_cluster(f"{CPU.name}:{case.world}")
    if not case.random_costs:
        return cluster
    rng = random.Random(f"cluster/{case.seed}/{case.number}")
    rate = 10 ** rng.uniform(5, 9)
    device = replace(
        cluster.device,
        matmul_flops_per_s=(("bf16", rate), ("f32", rate), ("f64", rate)),
        hbm_bytes_per_s=10 ** rng.uniform(6, 10),
        launch_us=10 ** rng.uniform(-2, 0),
    )
    curves = tuple(Curve(name, case.tp, ((1, 10 ** rng.uniform(-2, 2)),)) for name in COLLECTIVES)
    level = replace(cluster.levels[0], curves=curves)
    return replace(cluster, name=f"random-{case.world}", device=device, levels=(level,))
