"""Options of a job of Slurm, checked before anything is planned, and what comes of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import MeshwrightError


@dataclass(frozen=True)
class Submission:
    """A job of Slurm.

    job: its id, "" of one that was only written. script: what Slurm runs. out: the run's folder.
    text: of the script. aside: where files of earlier runs went, which are back where the job was
    only written.
    """

    job: str
    script: Path
    out: Path
    text: str
    aside: tuple[Path, ...] = ()


@dataclass(frozen=True)
class SlurmOptions:
    """Demands of a job besides its run; "" and None leave it to the site and the plan.

    nodes: a number, or the least and the most as "2-4"; a job file is planned anew for what is
    granted. plan_inside: plan it only there. preflight: as the option of a run. after: jobs that
    must have ended well, by id or run's folder. site: a file of defaults, in place of the user's.
    The rest is as sbatch has it, and as runtime/slurm/policy.py says of failures.
    """

    nodes: str = ""
    time: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    gres: str = ""
    array: str = ""
    name: str = ""
    after: Sequence[str] = ()
    site: str = ""
    spare: int = 0
    on_failure: str = "restart"
    restarts: int = 3
    backoff: float = 10.0
    stop_before: float | None = None
    plan_inside: bool = False
    preflight: str = "say"


def check_options(slurm: SlurmOptions) -> None:
    """Raise MeshwrightError for numbers that no job can have. Its time is given."""
    for name in ("spare", "restarts", "backoff", "stop_before"):
        value = getattr(slurm, name)
        if value is not None and not 0 <= value < math.inf:
            option = f"--{name.replace('_', '-')}"
            raise MeshwrightError(f"{option} {value}: give a number of at least 0")
    _check_stop(slurm)
    if slurm.nodes:
        check_spare(slurm.spare, slurm.nodes)


def _check_stop(slurm: SlurmOptions) -> None:
    from meshwright.runtime.slurm.script import seconds

    limit = seconds(slurm.time)
    if slurm.stop_before is not None and slurm.stop_before >= limit:
        raise MeshwrightError(
            f"--stop-before {slurm.stop_before:g} leaves nothing of the job's time, --time "
            f"{slurm.time} ({limit} s); give fewer seconds than {limit}"
        )


def check_spare(spare: int, nodes: str) -> None:
    """Raise MeshwrightError where no node would be left to run on. nodes: as of `node_range`."""
    from meshwright.runtime.slurm.script import node_range

    most = node_range(nodes)[1]
    if spare >= most:
        raise MeshwrightError(
            f"--spare {spare} of --nodes {nodes} leaves {max(most - spare, 0)} to run on; give "
            f"--spare {most - 1} or less"
        )
