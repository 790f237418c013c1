"""From a plan to a program's folder."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import one_class
from .files import write_text
from .plans import Plan

if TYPE_CHECKING:
    from meshwright.ir.plan import Plan as Decisions


@dataclass(frozen=True)
class Program:
    """A program's folder, which runs where only torch, numpy and safetensors are."""

    folder: Path

    @property
    def files(self) -> list[str]:
        """Return the names of its own files, without its copy of the runtime."""
        return sorted(p.name for p in self.folder.iterdir() if p.is_file())


def compile(plan: Plan, out: str | Path) -> Program:
    """Write a plan's program into a folder: a new one, an empty one, or that of an older program.

    Raises MeshwrightError where the folder holds anything else.
    """
    write_program(plan.decisions, Path(out))
    return Program(Path(out))


@one_class
def write_program(plan: "Decisions", folder: Path) -> list[str]:
    """Write the program's files and its copy of the runtime; return the names of the files.

    What an older program left in the folder goes. Raises MeshwrightError where it holds anything
    else.
    """
    from meshwright.codegen.program import emit

    files = {**emit(plan), "job.sbatch": _slurm_script(plan), "rates.json": _rates(plan)}
    _clear(folder)
    for name, text in files.items():
        write_text(folder / name, text)
    for script in ("launch.sh", "job.sbatch"):
        (folder / script).chmod(0o755)
    _copy_runtime(folder / "runtime")
    return sorted(files)


def _rates(plan: "Decisions") -> str:
    """Return what the plan assumes of its machines, for a preflight; nothing of a cluster that the
    catalogue lost."""
    from meshwright.planner.hardware.cluster import collective_us
    from meshwright.planner.hardware.cluster_file import cluster_of
    from meshwright.runtime.probe.rates import BYTES

    try:
        cluster = cluster_of(plan)
    except ValueError:
        return "{}\n"
    ranks, device = plan.mesh.num_devices, cluster.device
    rates = {
        "matmul_per_s": device.matmul_rate(plan.dtype),
        "copy_per_s": device.hbm_bytes_per_s,
    }
    if ranks > 1:
        for kind in ("all_reduce", "all_gather"):
            rates[f"{kind}_us"] = collective_us(cluster, kind, BYTES[device.type], ranks)
    return json.dumps(rates, indent=1) + "\n"


def _slurm_script(plan: "Decisions") -> str:
    """Return `job.sbatch` of a program by itself: a job of a day that takes the run's options."""
    from meshwright.runtime.slurm.script import Demands, Script, script_text

    devices = plan.mesh.num_devices
    per_node = min(devices, plan.devices_per_node)
    nodes = -(-devices // per_node)
    gpus = 0 if plan.device_type == "cpu" else per_node
    said = (
        f"{devices} ranks ({plan.mesh}). Submit from this folder: sbatch job.sbatch --data ...",
        "A day is a default: sbatch --time=HH:MM:SS takes another. Before its end the ranks save",
        "and stop, and the job is queued again; it goes on from its newest checkpoint, as after a",
        "lost node. meshwright submit writes a script with the run's options in it.",
    )
    script = Script(said, (), '"$SLURM_SUBMIT_DIR"', "python3", ["main.py"], (), (), given=True)
    return script_text(Demands(plan.model, str(nodes), gpus_per_node=gpus), script)


def _clear(folder: Path) -> None:
    """Remove an older program, and nothing that a run or a user put beside it."""
    held = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if held and not _is_program(folder):
        names = ", ".join(held[:3]) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
        raise ValueError(
            f"-o {folder} is no program's folder, it holds {names}; give a new or an empty folder, "
            "or that of an older program"
        )
    for path in (*folder.glob("stage_*.py"), folder / "identity.json"):
        path.unlink(missing_ok=True)
    for name in ("runtime", "__pycache__"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _is_program(folder: Path) -> bool:
    layout = folder / "layout.py"
    return layout.is_file() and "\nfrom runtime.layout import " in layout.read_text(
        errors="replace"
    )


def _copy_runtime(target: Path) -> None:
    import meshwright.runtime

    source = Path(meshwright.runtime.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(source, target, ignore=ignored)
