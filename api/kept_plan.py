"""The plan in a job's folder, taken again where all that it was made from is the same."""

from pathlib import Path
from typing import TYPE_CHECKING

from .demands import Job
from .files import write_text
from .plans import Plan

if TYPE_CHECKING:
    from meshwright.models import ModelSource
    from meshwright.planner.hardware.cluster import Cluster as Hardware

FILE = "plan.key"  # what the plan beside it was made from, and its own hash


def key_of(source: "ModelSource", hardware: "Hardware", job: Job) -> str:
    """Hash all that a plan is made from: model, cluster, demands, this package's code and torch's
    version; "" where nothing says all that decides, as with a loss of the user's own."""
    if not source.determined_by or "py:" in repr(job):
        return ""
    from meshwright.planner.hardware.cluster_file import format_cluster

    from .kept import PROVING, code_hash, hash_of

    return hash_of(
        source.name,
        source.determined_by,
        format_cluster(hardware),
        repr(job),
        code_hash((*PROVING, "planner", "api")),
    )


def keep_key(out: Path, key: str, plan: Plan) -> None:
    """Write beside a plan what it was made from, where that is known."""
    if key:
        write_text(out / FILE, f"{key} {plan.hash}\n")


def kept_plan(out: Path, key: str) -> Plan | None:
    """Return the plan of a folder that was made from the same, report and all; None where it was
    not, or its text was changed since."""
    known, path = out / FILE, out / "plan.txt"
    if not key or not known.is_file() or not path.is_file():
        return None
    made_from, _, its_hash = known.read_text(encoding="utf-8").strip().partition(" ")
    if made_from != key:
        return None
    report = Path(f"{path}.report.txt")
    plan = Plan(Plan.load(path).decisions, report.read_text() if report.is_file() else "")
    return plan if plan.hash == its_hash else None
