"""Planning as `plan` and `explain --why-not` ask for it: options to the API's words."""

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING

from meshwright.api.demands import Cluster, Job, Say

if TYPE_CHECKING:
    from meshwright.api.plans import Plan


def plan_of(model: str, options: argparse.Namespace, say: Say) -> "Plan":
    """Plan a model spec under plan options. Raises MeshwrightError for bad ones."""
    from meshwright.api.planning import plan

    given = {name: value for name, value in vars(options).items() if value is not None}
    cluster = Cluster(given["cluster"], given.get("gpu_memory", ""), given.get("host_memory", ""))
    known = {item.name for item in fields(Job)}
    job = Job(**{k: v for k, v in given.items() if k in known}, pins=tuple(options.pin))
    return plan(model, cluster=cluster, job=job, say=say)
