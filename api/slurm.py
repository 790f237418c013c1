"""Jobs of Slurm: submitted, listed, looked into and cancelled."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .demands import Say, silent
from .errors import MeshwrightError, one_class
from .files import write_text
from .job_array import folders, in_first_task, is_of_a_task, of_first_task, run_values
from .slurm_options import SlurmOptions, Submission, check_options, check_spare

if TYPE_CHECKING:
    from meshwright.runtime.slurm.script import Demands
    from meshwright.runtime.slurm.site import Site

SCRIPT = "job.sbatch"
# States of a job that may yet write to its run.
LIVE = (
    "PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED", "STOPPED",
    "RESIZING", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "REQUEUE_HOLD", "REQUEUE_FED",
    "RESV_DEL_HOLD",
)  # fmt: skip
_MODULE = "meshwright.runtime.slurm.supervisor"


@one_class
def submit(
    target: str | Path,
    slurm: SlurmOptions | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    dry_run: bool = False,
    say: Say = silent,
) -> Submission:
    """Write the script of a job into its run's folder, and submit it.

    target: a job file (TOML), which is planned and compiled first, or a program's folder. options:
    of the run, by name. overrides: values of the job file as "a.b=c". dry_run: only write the
    script. Raises MeshwrightError where Slurm, the job or the site's file does not allow
    it.
    """
    from meshwright.runtime.slurm.scheduler import call
    from meshwright.runtime.slurm.site import read_site

    path, slurm = Path(target), slurm or SlurmOptions()
    site = read_site(slurm.site)
    slurm = _checked(slurm, site)
    with _back_unless_kept() as moved:
        if path.is_dir():
            _check_of_program(path, slurm, overrides)
            made = _of_program(path, slurm, site, dict(options or {}), out, moved)
        elif path.suffix == ".toml":
            given = [f"run.{k}={_toml(value, slurm)}" for k, value in (options or {}).items()]
            made = _of_job(path, slurm, site, [*overrides, *given], out, moved, say)
        else:
            raise MeshwrightError(f"{target}: neither a job's TOML file nor a program's folder")
        write_text(made.script, made.text)
        made.script.chmod(0o755)
        made = replace(made, aside=tuple(moved))
        if dry_run:
            return made
        job = call(["sbatch", "--parsable", str(made.script)]).strip().partition(";")[0]
        moved.clear()
    remember(job, made, slurm.array)
    return replace(made, job=job)


def _checked(slurm: SlurmOptions, site: "Site") -> SlurmOptions:
    """Return the options with the time of the job, and with ids of what it waits for. Raises
    MeshwrightError for those that no job can have."""
    from meshwright.runtime.slurm.script import DEFAULT_TIME

    slurm = replace(slurm, time=slurm.time or site.time or DEFAULT_TIME)
    check_options(slurm)
    slurm = replace(slurm, after=tuple(map(_awaited, slurm.after)))
    _demands(slurm, site, "job", slurm.nodes or "1")
    return slurm


@contextmanager
def _back_unless_kept() -> Iterator[dict[Path, Path]]:
    """Give a record of folders by the place that their files were moved to; what it still holds at
    the end is moved back."""
    moved: dict[Path, Path] = {}
    try:
        yield moved
    finally:
        for aside, out in reversed(moved.items()):
            from meshwright.runtime.training.run_folder import put_back

            put_back(out, aside)


def _start_anew(out: Path, slurm: SlurmOptions, moved: dict[Path, Path]) -> None:
    """Move runs in the folders of a job aside: it goes on from any checkpoint that it finds."""
    from meshwright.runtime.training.run_folder import begin, check_free

    for folder in folders(out, slurm.array).values():
        check_free(folder)
        if aside := begin(folder):
            moved[aside] = folder


def _toml(value: Any, slurm: SlurmOptions) -> str:
    """Return the value of an option as a job file writes it; what differs by task as it is."""
    if is_of_a_task(value, slurm.array):
        return value
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _check_alone(out: Path, slurm: SlurmOptions) -> None:
    """Raise MeshwrightError where another job of this user writes to the run's folder, or one of an
    array's, unless the new one waits for it."""
    made_in = {path.resolve() for path in folders(out.resolve(), slurm.array).values()}
    others = {job: folder for job, folder in _known() if folder in made_in}
    states = _states() if others else {}
    for job, folder in others.items():
        state = states.get(job, ("",))[0]
        awaited = {job, job.partition("_")[0]} & set(slurm.after)  # a job, or its whole array
        if state in LIVE and not awaited:
            raise MeshwrightError(
                f"{folder}: job {job} is {state} and writes there, 1 job can; meshwright cancel "
                f"{job}, or give another --out"
            )


def _check_of_program(folder: Path, slurm: SlurmOptions, overrides: Sequence[str]) -> None:
    """Raise MeshwrightError for what only a job file can be given."""
    from meshwright.runtime.training.options import flag

    for text in overrides:
        key, _, value = text.partition("=")
        table, _, name = key.rpartition(".")
        given = flag(name) if value == "true" else f"{flag(name)} {value}"
        way = f"give {given}" if table == "run" else "submit the job file"
        raise MeshwrightError(
            f"--set {text}: --set changes a job file, {folder} is a program; {way}"
        )
    if slurm.plan_inside:
        raise MeshwrightError(
            f"--plan-inside: {folder} is a program, which is planned; submit the job file"
        )


def _of_program(
    folder: Path,
    slurm: SlurmOptions,
    site: "Site",
    options: dict[str, Any],
    out: str | Path | None,
    moved: dict[Path, Path],
) -> Submission:
    from meshwright.runtime.given import check_given
    from meshwright.runtime.launch.words import option_words
    from meshwright.runtime.slurm.needs import nodes_of
    from meshwright.runtime.training.options import run_options
    from meshwright.runtime.training.spans import program_tokens_per_step

    options = {**options, "out": str(out or options.get("out") or "run")}
    _check_alone(Path(options["out"]), slurm)
    first = of_first_task(options, slurm.array)
    check_given(folder, first)
    checked = run_options(first, lambda: program_tokens_per_step(folder))
    options |= {name: getattr(checked, name) for name in options if options[name] == first[name]}
    needs = json.loads((folder / "needs.json").read_text())
    planned = nodes_of(folder) + slurm.spare
    if slurm.nodes and slurm.nodes != str(planned):
        raise MeshwrightError(
            f"--nodes {slurm.nodes}: {folder} is planned for {nodes_of(folder)} nodes"
            + (f" and {slurm.spare} are to spare" if slurm.spare else "")
            + f", {planned} in all; plan for others, or submit the job file"
        )
    if first.get("fresh"):
        _start_anew(Path(options["out"]), slurm, moved)
    main = str((folder / "main.py").resolve())
    run = option_words({"preflight": slurm.preflight, **options})
    demands = _demands(slurm, site, folder.name, str(planned), needs, Path(options["out"]))
    return _made(Path(options["out"]), slurm, site, demands, [main], [], run, folder.name)


def _check_of_tasks(overrides: list[str], array: str) -> None:
    """Raise MeshwrightError for a value that would differ by task: all tasks share one plan."""
    for text in overrides:
        key, _, value = text.partition("=")
        if is_of_a_task(value, array) and not key.startswith("run."):
            raise MeshwrightError(
                f"--set {text}: the tasks of --array {array} share 1 plan, %a may stand in values "
                "of [run]; submit a job for each"
            )


def _of_job(
    path: Path,
    slurm: SlurmOptions,
    site: "Site",
    overrides: list[str],
    out: str | Path | None,
    moved: dict[Path, Path],
    say: Say,
) -> Submission:
    from meshwright.planner.hardware.cluster_file import parse_cluster
    from meshwright.runtime.launch.job import load_job
    from meshwright.runtime.launch.words import option_words
    from meshwright.runtime.slurm.attempts import FOLDER
    from meshwright.runtime.slurm.script import node_range

    from .jobs import prepare

    given = [f"run.out={json.dumps(str(out))}"] if out else []
    _check_of_tasks(overrides, slurm.array)
    of_tasks = run_values([*overrides, *given], slurm.array)
    overrides = [
        text if text.startswith("run.out=") else in_first_task(text, slurm.array)
        for text in overrides
    ]
    job = load_job(path, [*overrides, *given])
    folder = Path(job.run.get("out", "run"))
    _check_alone(folder, slurm)
    nodes = slurm.nodes or str(parse_cluster(job.plan["cluster"]).nodes + slurm.spare)
    check_spare(slurm.spare, nodes)
    most = node_range(nodes)[1] - slurm.spare
    fresh = bool(job.run.get("fresh"))
    if slurm.plan_inside:
        cluster = parse_cluster(job.plan["cluster"])
        needs = {
            "device_type": cluster.device.type,
            "devices_per_node": cluster.devices_per_node,
            "model": job.model,
        }
    else:
        ready = prepare(path, overrides=[*overrides, *given], nodes=most, say=say)
        moved |= {ready.aside: folder} if ready.aside else {}
        needs = json.loads((folder / "program" / "needs.json").read_text())
    if fresh:
        _start_anew(folder, slurm, moved)
    kept = folder / FOLDER / "job.toml"
    write_text(kept, job.text)
    again = [sys.executable, "-m", "meshwright.cli", "train", str(kept.resolve()), "--prepare"]
    again += ["--set", "run.fresh=false"] if fresh else []  # what the job has saved by then stays
    words = ["--plan-again", shlex.join(again)]
    least = nodes.partition("-")[0] if "-" in nodes else "1"
    words += ["--least", least]
    if not slurm.plan_inside:
        words += ["--program", str((folder / "program").resolve())]
    run = option_words({"preflight": slurm.preflight, **job.run, **of_tasks, "out": str(folder)})
    demands = _demands(slurm, site, path.stem, nodes, needs, folder)
    return _made(folder, slurm, site, demands, ["-m", _MODULE], words, run, path.stem)


def _demands(
    slurm: SlurmOptions,
    site: "Site",
    name: str,
    nodes: str,
    needs: Mapping[str, Any] = MappingProxyType({"device_type": "cpu"}),
    out: Path = Path("/"),
) -> "Demands":
    """Return what a job asks of Slurm. Raises SlurmError. needs: of its program."""
    from meshwright.runtime.slurm.attempts import FOLDER
    from meshwright.runtime.slurm.script import Demands, log_pattern

    gpus = 0 if needs["device_type"] == "cpu" else site.gpus_per_node or needs["devices_per_node"]
    gres = slurm.gres or site.gres
    return Demands(
        job_name=slurm.name or name,
        nodes=nodes,
        time=slurm.time,
        gpus_per_node=0 if gres else gpus,
        gres=gres,
        partition=slurm.partition or site.partition,
        account=slurm.account or site.account,
        qos=slurm.qos or site.qos,
        constraint=slurm.constraint or site.constraint,
        array=slurm.array,
        dependency=f"afterok:{':'.join(slurm.after)}" if slurm.after else "",
        output=log_pattern((out / FOLDER).resolve(), array=bool(slurm.array)),
        exclusive=site.exclusive,
    )


def _made(
    out: Path,
    slurm: SlurmOptions,
    site: "Site",
    demands: "Demands",
    supervisor: list[str],
    words: list[str],
    run: list[str],
    name: str,
) -> Submission:
    """Return the job, not yet written. supervisor: what its script runs. words: its options."""
    from meshwright.runtime.slurm.attempts import FOLDER
    from meshwright.runtime.slurm.script import Script, script_text, stop_before_s

    before = stop_before_s(slurm.time) if slurm.stop_before is None else slurm.stop_before
    job = ["--on-failure", slurm.on_failure, "--restarts", str(slurm.restarts)]
    job += ["--backoff", f"{slurm.backoff:g}", "--spare", str(slurm.spare)]
    job += ["--stop-before", f"{before:g}"]
    job += ["--prefix", site.prefix] if site.prefix else []
    text = script_text(
        demands,
        Script(
            said=[f"{name} on {demands.nodes} nodes; written by meshwright submit"],
            setup=list(site.lines((out / "compiled").resolve())),
            folder=shlex.quote(os.getcwd()),
            python=site.python or sys.executable,
            supervisor=supervisor,
            words=[*job, *words],
            run=run,
        ),
    )
    for folder in folders(out, slurm.array).values():
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    return Submission("", out / SCRIPT, out, text)


def _index() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "meshwright" / "jobs.jsonl"


def remember(job: str, made: Submission, array: str = "") -> None:
    """Keep for this user which run a job is of, or each task of an array."""
    made_in = folders(made.out.resolve(), array)
    rows = ({"job": job + task, "out": str(out)} for task, out in made_in.items())
    path = _index()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


@dataclass(frozen=True)
class JobState:
    """A job of this user. state: as Slurm says, "" of one that it has forgotten. reason: why it
    waits. nodes: those that it has, as Slurm lists them."""

    job: str
    out: Path
    state: str
    reason: str
    nodes: str


@one_class
def jobs() -> list[JobState]:
    """Return the jobs that this user submitted here, newest last."""
    states = _states()
    return [JobState(job, out, *states.get(job, ("", "", ""))) for job, out in _known()]


def _known() -> Iterator[tuple[str, Path]]:
    path = _index()
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        row = json.loads(line)
        yield row["job"], Path(row["out"])


def _states() -> dict[str, tuple[str, str, str]]:
    from meshwright.runtime.slurm.scheduler import call

    words = ["squeue", "--noheader", "--me", "--array", "--states=all", "--format=%i|%T|%r|%N"]
    text = call(words)
    rows = (line.split("|") for line in text.splitlines())
    return {
        job: (state, reason if state in LIVE and reason != "None" else "", nodes)
        for job, state, reason, nodes in rows
    }


@one_class
def folder_of(name: str) -> Path:
    """Return the run's folder that a job's id, or a path, names. Raises MeshwrightError."""
    found = dict(_known()).get(name)
    if found is None and Path(name).is_dir():
        return Path(name)
    tasks = [job for job in dict(_known()) if job.startswith(f"{name}_")]
    if found is None and tasks:
        raise MeshwrightError(
            f"job {name} is an array of {len(tasks)} tasks; name one, such as {tasks[0]}"
        )
    if found is None:
        raise MeshwrightError(
            f"{name}: no folder, and no job that was submitted from here ({len(dict(_known()))} "
            "are known); `meshwright jobs` lists them"
        )
    return found


@one_class
def find_job(name: str) -> JobState | None:
    """Return the job that an id, or a run's folder, names: the newest live one, else the newest."""
    known, out = jobs(), Path(name).resolve()
    found = [s for s in known if s.job == name] or [s for s in known if s.out == out]
    newest_first = reversed(found or list(_by_hand(out)))
    return max(newest_first, key=lambda state: state.state in LIVE, default=None)


def _by_hand(out: Path) -> Iterator[JobState]:
    """Yield jobs with a log in a run's folder, as of sbatch called by hand, the newest last."""
    logs = sorted(out.glob("slurm/job-*.log"), key=lambda path: path.stat().st_mtime)
    states = _states() if logs else {}
    ids = (path.stem.removeprefix("job-") for path in logs)
    yield from (JobState(job, out, *states[job]) for job in ids if job in states)


def _job_of(name: str) -> tuple[str, list[str]]:
    """Return the id of the job that an id, or a run's folder, names, and its states: of an array
    those of all tasks. Raises MeshwrightError where Slurm does not know it."""
    from meshwright.runtime.slurm.scheduler import states_of

    found = find_job(name)
    job = found.job if found else name
    states = [] if found is None and Path(name).is_dir() else states_of(job)
    if not states:
        known = f"job {job}, which ended, is forgotten" if found else "no job of that name is known"
        raise MeshwrightError(
            f"{name}: {known} to Slurm; `meshwright jobs` lists the jobs that were submitted from "
            "here"
        )
    return job, states


def _awaited(name: str) -> str:
    """Return the id of a job that another waits for. Raises MeshwrightError where that would not
    wait, or for ever."""
    try:
        job, states = _job_of(name)
    except MeshwrightError as error:
        raise MeshwrightError(f"--after {error}") from None
    for state in states:
        if state not in (*LIVE, "COMPLETED"):
            raise MeshwrightError(
                f"--after {name}: job {job} ended before: {state}, a job after it would never "
                "start; leave it out"
            )
    return job


@one_class
def cancel(name: str) -> str:
    """Cancel a job, by its id or its run's folder: its ranks save, and it is not queued again.
    Returns its id."""
    from meshwright.runtime.slurm.scheduler import call

    job, states = _job_of(name)
    if not set(states) & set(LIVE):
        raise MeshwrightError(f"job {job} ended before: {', '.join(sorted(set(states)))}")
    call(["scancel", job])
    return job


def as_data(state: JobState) -> dict[str, Any]:
    """Return a job as JSON has it."""
    return {**asdict(state), "out": str(state.out)}
