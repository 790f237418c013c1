"""`meshwright control`: commands to a live run, from another shell."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import print_result
from .parsers import add_command

if TYPE_CHECKING:
    from meshwright.runtime.control.address import Address
    from meshwright.runtime.control.commands import Command

# What srun itself adds to what a command said that ended with an exit code.
_EXITED = r"srun: error: .*: Exited with exit code \d+"
_LOOKS = {
    "list": "the live runs in a folder and below, and of jobs that were submitted here",
    "status": "where the run stands",
    "metrics": "the run's numbers, as Prometheus reads them",
}
# When a command is done, and where its result goes.
_COMES = {
    "profile": "it traces the next {steps} steps, into {out}/profile",
    "stragglers": "it times the next {steps} steps, into the run's log and {out}/stragglers.json",
}


def add(commands: Any) -> None:
    """Add the command."""
    from meshwright.runtime.control.commands import COMMANDS

    does = "; ".join(f"{name}: {text}" for name, text in {**_LOOKS, **COMMANDS}.items())
    parser = add_command(
        commands,
        "control",
        _run,
        f"Ask or tell a live run from another shell. DO is one of {does}.",
    )
    parser.add_argument("do", metavar="DO", choices=(*_LOOKS, *COMMANDS))
    parser.add_argument(
        "run_folder", metavar="RUN", nargs="?", default=".", help="a run's folder, or a job's id"
    )
    parser.add_argument("values", metavar="NAME=VALUE", nargs="*", default=(), help="of set")
    parser.add_argument("--steps", type=int, default=3, help="of profile and stragglers")


def _run(arguments: argparse.Namespace) -> int:
    from meshwright.api.slurm import folder_of

    if "=" in arguments.run_folder and not Path(arguments.run_folder).is_dir():
        values = [arguments.run_folder, *arguments.values]
        arguments.run_folder, arguments.values = ".", values
    command = _command(arguments)
    if arguments.do == "list":
        return _list(arguments)
    out = folder_of(arguments.run_folder)
    from meshwright.runtime.control.client import address_in, metrics_of, send, status_of
    from meshwright.runtime.host import host_name

    address = address_in(out)
    if address.host != host_name():
        return _elsewhere(address, arguments, out)
    if arguments.do == "metrics":
        text = metrics_of(address)
        print_result(arguments, {"text": text}, text.rstrip(), "metrics")
        return 0
    if command is None:
        said = status_of(address)
        print_result(arguments, said, _status_text(said), "status")
        return 0
    send(address, command)
    data = {"run": str(out), "taken": command.do}
    when = _COMES.get(command.do, "it is done within a step").format(steps=command.steps, out=out)
    print_result(arguments, data, f"{out}: {command.do} is taken; {when}")
    return 0


def _command(arguments: argparse.Namespace) -> "Command | None":
    """Return what a live run is told, None where it is only looked at. Raises ValueError for what
    no run takes."""
    from meshwright.runtime.control.commands import Command

    if arguments.values and arguments.do != "set":
        raise ValueError(
            f"{arguments.do} takes no values, {' '.join(arguments.values)} is for set: control set "
            f"{arguments.run_folder} {' '.join(arguments.values)}"
        )
    if arguments.do in _LOOKS:
        return None
    return Command(arguments.do, _values(arguments.values), arguments.steps)


def _values(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise ValueError(f"{text}: write NAME=VALUE, such as lr=1e-4")
    return dict(text.split("=", 1) for text in texts)


def _elsewhere(address: "Address", arguments: argparse.Namespace, out: Path) -> int:
    """Give the same command on the machine that the run's endpoint listens on."""
    if not address.job:
        raise ValueError(
            f"the run in {out} listens on the loopback of {address.host}, port {address.port}; "
            "give the command there"
        )
    words = [sys.executable, "-m", "meshwright.cli", "control", arguments.do, str(out.resolve())]
    words += [*arguments.values, "--steps", str(arguments.steps)]
    words += ["--json"] if arguments.json else []
    srun = ["srun", "--overlap", "--quiet", f"--jobid={address.job}", "--nodes=1", "--ntasks=1"]
    whole = [*srun, f"--nodelist={address.host}", *words]
    done = subprocess.run(whole, stderr=subprocess.PIPE, text=True, errors="replace")
    said = [line for line in done.stderr.splitlines() if not re.fullmatch(_EXITED, line)]
    print(*said, sep="\n", end="\n" if said else "", file=sys.stderr)
    if done.returncode < 0 or done.returncode > 2:
        raise ValueError(f"{shlex.join(srun)} ended with {done.returncode}")
    return done.returncode


def _list(arguments: argparse.Namespace) -> int:
    from meshwright.api.slurm import jobs
    from meshwright.runtime.control.address import read_address
    from meshwright.runtime.training.past_run import find_runs

    folders = [run.folder for run in find_runs(Path(arguments.run_folder))]
    known = {folder.resolve() for folder in folders}
    folders += [state.out for state in _quietly(jobs) if state.out.resolve() not in known]
    found = {str(out): read_address(out) for out in folders}
    live = {out: address for out, address in found.items() if address is not None}
    rows = [f"{out}  on {a.host}" + (f", job {a.job}" if a.job else "") for out, a in live.items()]
    data = {"runs": [{"run": out, "host": a.host, "job": a.job} for out, a in live.items()]}
    print_result(arguments, data, "\n".join(rows) or "no run is live", "list")
    return 0


def _quietly(jobs: Any) -> list[Any]:
    """Return the jobs of Slurm, none where there is no Slurm."""
    try:
        return [state for state in jobs() if state.state == "RUNNING"]
    except ValueError:
        return []


def _status_text(said: dict[str, Any]) -> str:
    parts = [f"step {said['step']} of {said['steps']}"]
    if said.get("loss") is not None:
        parts.append(f"loss {said['loss']:.4f}  lr {said['lr']:.2e}  {said['step_ms']:.1f} ms")
    if said.get("predicted_step_ms"):
        parts.append(f"predicted {said['predicted_step_ms']:.1f} ms")
    hosts = ", ".join(said["hosts"])
    return f"{said['model']} in {said['run']} on {hosts}\n{'  '.join(parts)}"
