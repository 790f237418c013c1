"""Planning as `plan` and `explain --why-not` ask for it: options to the API's words."""

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING

from meshwright.api.demands import Cluster, Job

from .doing import Doing

if TYPE_CHECKING:
    from meshwright.api.plans import Plan


def plan_of(model: str, options: argparse.Namespace, stoppable: bool = False) -> "Plan":
    """Plan a model spec under plan options; what is being done stands on stderr.

    stoppable: Ctrl-C ends the search with the best plan so far. Raises MeshwrightError for bad
    options.
    """
    from meshwright.api.planning import plan

    given = {name: value for name, value in vars(options).items() if value is not None}
    cluster = Cluster(given["cluster"], given.get("gpu_memory", ""), given.get("host_memory", ""))
    known = {item.name for item in fields(Job)}
    job = Job(**{k: v for k, v in given.items() if k in known}, pins=tuple(options.pin))
    with Doing() as say:
        processes = given.get("processes")
        return plan(
            model, cluster=cluster, job=job, say=say, stoppable=stoppable, processes=processes
        )
