"""What the nodes of an attempt tell each other and the supervisor: files in a folder of theirs."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..atomic_file import write_atomic
from ..training.options import STOPPED

_END, _STEP, _BEGUN, _STOP = ".end.json", ".step", "begun.json", "stop"
GONE = "what starts its ranks ended without a word (out of memory?)"
LOST = "the node is lost: it told nothing of its end, and does not answer"


@dataclass(frozen=True)
class NodeEnd:
    """End of the ranks of a node. killed: a signal that nobody sent on purpose ended one.
    cause: they failed by themselves, not because another node did. at_s: since the epoch."""

    node: str
    code: int
    said: str
    killed: bool
    cause: bool
    at_s: float


@dataclass(frozen=True)
class Begun:
    """Beginning of an attempt. nodes: in the order of ranks. first: steps of the newest checkpoint.
    at_s: since the epoch."""

    nodes: tuple[str, ...]
    first: int
    at_s: float


def tell_begun(folder: Path, begun: Begun) -> None:
    """Tell how an attempt begins, before its nodes are started."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / _BEGUN, json.dumps(asdict(begun)) + "\n")


def read_begun(folder: Path) -> Begun | None:
    """Return how an attempt began; None of a folder in which none did."""
    try:
        said = json.loads((folder / _BEGUN).read_text())
        return Begun(tuple(said["nodes"]), int(said["first"]), float(said["at_s"]))
    except (OSError, ValueError, KeyError):
        return None


def tell_step(folder: Path, node: str, step: str) -> None:
    """Tell under which number Slurm runs this attempt."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{node}{_STEP}", step)


def step_number(folder: Path) -> str:
    """Return the number of the attempt's step, "" before a node has told it."""
    return next((path.read_text() for path in sorted(folder.glob(f"*{_STEP}"))), "")


def ready_nodes(folder: Path) -> set[str]:
    """Return the nodes whose agents take signals; until then one would end them."""
    return {path.name.removesuffix(_STEP) for path in folder.glob(f"*{_STEP}")}


def tell_stop(folder: Path) -> None:
    """Tell the nodes of an attempt that their ranks are to save and stop."""
    (folder / _STOP).touch()


def is_stopped(folder: Path) -> bool:
    """Tell whether the ranks of an attempt are to save and stop."""
    return (folder / _STOP).exists()


def tell_end(folder: Path, end: NodeEnd) -> None:
    """Tell how the ranks of a node ended."""
    write_atomic(folder / f"{end.node}{_END}", json.dumps(asdict(end)) + "\n")


def read_ends(folder: Path) -> dict[str, NodeEnd]:
    """Return by node how its ranks ended, of the nodes that told it."""
    found = (NodeEnd(**json.loads(path.read_text())) for path in folder.glob(f"*{_END}"))
    return {end.node: end for end in found}


def has_failed(end: NodeEnd) -> bool:
    """Tell whether a node's ranks ended otherwise than well or by a stop that was asked for."""
    return end.code not in (0, STOPPED)


def at_fault(
    ends: Mapping[str, NodeEnd], lost: Sequence[str], wordless: Sequence[str] = ()
) -> dict[str, str]:
    """Return the nodes at fault for a failed attempt, with why.

    lost: nodes that told nothing of their end, and do not answer. Without one a rank that was
    killed is the cause, as one that raised may only have lost its peer; else nodes that answer and
    told nothing, the wordless; else the node named as the straggler; else the first that failed.
    """
    if lost:
        return dict.fromkeys(lost, LOST)
    failed = sorted(filter(has_failed, ends.values()), key=lambda end: (not end.cause, end.at_s))
    killed = [end for end in failed if end.killed and end.cause]
    if wordless and not killed:
        return dict.fromkeys(wordless, GONE)
    for end in killed or failed[:1]:
        named = next((node for node in ends if f" on {node} is the straggler" in end.said), None)
        return {named or end.node: last_complaint(end.said)}
    return {}


def without_rank(said: str) -> str:
    """Return what a rank said of an error, without which one it is."""
    return re.sub(r"^error: rank \d+: ", "error: ", said, flags=re.MULTILINE)


def last_complaint(said: str) -> str:
    """Return the last line of what was said that is an error, without the word."""
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    return lines[-1].removeprefix("error: ") if lines else said.strip().rpartition("\n")[2]
