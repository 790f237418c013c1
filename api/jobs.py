"""Plan, compile and run from one job file."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.ir.errors import PlanError

from .demands import Cluster, Job, Say, silent
from .errors import MeshwrightError, RunFailedError, one_class
from .files import write_text
from .here import at_hand
from .kept_plan import keep_key, kept_plan, key_of
from .modules import load_model
from .planning import plan
from .plans import Plan
from .programs import compile
from .results import RunResult
from .runs import Trainer

if TYPE_CHECKING:
    from meshwright.runtime.launch.job import Job as JobFile


@dataclass(frozen=True)
class Prepared:
    """A job that is planned and compiled into its run's folder.

    fresh: it is to start at step 0. aside: where an earlier job's files went, which come back if
    the run is refused. why: it starts anew, to be said before that.
    """

    folder: Path
    plan: Plan
    aside: Path | None
    why: str
    fresh: bool
    file: "JobFile"

    def train(self, *, quiet: bool = False, say: Say = silent) -> RunResult:
        """Run it; quiet: print nothing of what rank 0 prints. Raises as Trainer does."""
        from meshwright.runtime.training.run_folder import put_back

        if self.aside:
            say(f"{self.why}what an earlier job left in {self.folder} is now in {self.aside}")
        options = {**self.file.run, "out": str(self.folder), "fresh": self.fresh}
        restarts, program = self.file.restarts, self.folder / "program"
        try:
            return Trainer(program, restarts=restarts, quiet=quiet, say=say, **options).train()
        except MeshwrightError as error:
            refused = not isinstance(error, RunFailedError) or error.code == 2
            if self.aside and refused:
                put_back(self.folder, self.aside)
                say(f"the run is refused: {self.folder} holds the earlier job again")
            raise


def train(
    job: str | Path,
    *,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    fresh: bool = False,
    quiet: bool = False,
    say: Say = silent,
) -> RunResult:
    """Plan, compile and run what a job file (TOML) says; all of it goes into the run's folder.

    quiet: print nothing of what rank 0 prints. The rest is as `prepare` takes it. Raises
    MeshwrightError as that does, and RunFailedError as Trainer does.
    """
    ready = prepare(job, overrides=overrides, out=out, fresh=fresh, say=say)
    return ready.train(quiet=quiet, say=say)


@one_class
def prepare(
    job: str | Path,
    *,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    fresh: bool = False,
    nodes: int | None = None,
    say: Say = silent,
) -> Prepared:
    """Plan and compile what a job file (TOML) says into the run's folder.

    overrides: values of the file as "a.b=c". out: the run's folder, over the file's. fresh: start
    at step 0 where the folder holds a run, which is moved aside. nodes: of the cluster, in place of
    those of the file. say: takes each line of progress.

    Raises MeshwrightError for what the file holds, before anything is planned.
    """
    given = [f"run.out={json.dumps(str(out))}"] if out else []
    file = _load_checked(Path(job), [*overrides, *given])
    folder = Path(file.run.get("out", "run"))
    fresh = fresh or bool(file.run.get("fresh"))
    return Prepared(folder, *_write_job(file, folder, fresh, nodes, say), fresh, file)


def _load_checked(path: Path, overrides: list[str]) -> "JobFile":
    """Return the job; what every rank would refuse is refused before anything is planned."""
    from meshwright.runtime.given import check_options
    from meshwright.runtime.launch.job import load_job
    from meshwright.runtime.metrics.trackers import check_tracker

    job = load_job(path, overrides)
    check_options(job.run)
    check_tracker(job.run.get("track", "none"))
    return job


def _write_job(
    file: "JobFile", out: Path, fresh: bool, nodes: int | None, say: Say
) -> tuple[Plan, Path | None, str]:
    """Write plan, report, program and the resolved job file into the run's folder.

    Returns the plan, where an earlier job's files went, and why the run starts anew.
    """
    from meshwright.runtime.training.run_folder import begin_job, check_free, unsaved

    check_free(out)
    made, key = _planned(file, out, nodes, say)
    why = "" if fresh else unsaved(out)
    aside = begin_job(out, made.text, fresh)
    _write_planned(made, key, out)
    write_text(out / "job.toml", file.text)
    return made, aside, why


def _write_planned(made: Plan, key: str, out: Path) -> None:
    made.save(out / "plan.txt")
    keep_key(out, key, made)
    compile(made, out / "program")


def _planned(file: "JobFile", out: Path, nodes: int | None, say: Say) -> tuple[Plan, str]:
    """Return the job's plan, that of its folder where it was made from the same; and its key."""
    from meshwright.planner.hardware.cluster_file import parse_cluster

    source, job = load_model(file.model), _job(file)
    with _named(file.path):
        cluster = of_nodes(at_hand(_cluster(file), say), nodes, out)
        key = key_of(source, parse_cluster(cluster.spec), job)
        known = kept_plan(out, key)
        if known is not None:
            say(f"{out / 'plan.txt'} was made from the same: taken as it is")
            return known, key
        return plan(source, cluster=cluster, job=job, say=say), key


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the job file before what its table [plan] asks for and cannot have."""
    try:
        yield
    except PlanError as error:
        raise type(error)(f"{path}: [plan] {error}") from error


def _cluster(file: "JobFile") -> Cluster:
    said = file.plan
    return Cluster(said["cluster"], said["gpu_memory"], said["host_memory"])


def of_nodes(cluster: Cluster, nodes: int | None, out: Path) -> Cluster:
    """Return the cluster with another number of nodes; that of a file as a file of its own in the
    run's folder. None leaves it as it is."""
    from meshwright.planner.hardware.catalogue import CATALOGUE
    from meshwright.planner.hardware.cluster_file import format_cluster, parse_cluster, resized

    if nodes is None or parse_cluster(cluster.spec).nodes == nodes:
        return cluster
    per_node = parse_cluster(cluster.spec).devices_per_node
    sized = resized(cluster.spec, per_node, nodes)
    if cluster.name.partition(":")[0] in CATALOGUE:
        return Cluster(sized.name)
    path = out / f"cluster-{nodes}-nodes.toml"
    write_text(path, format_cluster(sized))
    return Cluster(str(path))


def _job(file: "JobFile") -> Job:
    """Return the options of [plan], those of the cluster left out."""
    around = ("cluster", "gpu_memory", "host_memory", "pin")
    fields = {name: value for name, value in file.plan.items() if name not in around}
    return Job(**fields, pins=tuple(file.plan["pin"]))
