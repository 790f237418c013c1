"""The attempts of a run under Slurm, kept in OUT/slurm/attempts.jsonl over restarts of its job."""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from ..fast_mark import read_mark
from ..training.options import STOPPED

FOLDER, FILE = "slurm", "attempts.jsonl"


@dataclass(frozen=True)
class Attempt:
    """One start of the ranks.

    job, restart: of Slurm. nodes: in the order of ranks. began_s, ended_s: seconds since the epoch.
    code: of the ranks. first, saved: steps of the newest checkpoint before and after. failed: nodes
    at fault, with why. then: what was decided, and why.
    """

    job: str
    restart: int
    number: int
    nodes: tuple[str, ...]
    began_s: float
    ended_s: float
    code: int
    first: int
    saved: int
    failed: dict[str, str]
    then: str


class Attempts:
    """The attempts of the run in a folder, as a job makes them. Those of earlier jobs, which a user
    submitted anew, are kept, and do not count as failures."""

    def __init__(self, out: Path, job: str) -> None:
        self.out, self.job = out, job
        self.folder = out / FOLDER
        self.known = read_attempts(out)

    def add(self, attempt: Attempt) -> None:
        """Append an attempt, on disk when this returns."""
        self.known.append(attempt)
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / FILE, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(attempt)) + "\n")

    @property
    def next_number(self) -> int:
        """Return the number of the next attempt, from 1 on."""
        return len(self.known) + 1

    def times_failed(self, also: dict[str, str]) -> Counter[str]:
        """Return how often each node failed in this job, the failures `also` among them."""
        own = (attempt.failed for attempt in self.known if attempt.job == self.job)
        return Counter(node for failed in (*own, also) for node in failed)

    def failures_in_a_row(self) -> int:
        """Return how many of the last attempts failed and left no new checkpoint."""
        count = 0
        for attempt in reversed(self.known):
            done = attempt.code in (0, STOPPED) or attempt.saved > attempt.first
            if done or attempt.job != self.job:
                break
            count += 1
        return count


def read_attempts(out: Path) -> list[Attempt]:
    """Return the attempts of a run in order; a line that was cut short is left out."""
    path = out / FOLDER / FILE
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            said = json.loads(line)
            found.append(Attempt(**{**said, "nodes": tuple(said["nodes"])}))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def newest_step(out: Path) -> int:
    """Return the steps of the newest checkpoint of a run, of either tier, 0 without one."""
    names = (p.name.removeprefix("step_") for p in (out / "checkpoints").glob("step_*"))
    return max([read_mark(out), *(int(name) for name in names if name.isdigit())])


def now_s() -> float:
    """Return seconds since the epoch, which machines share more or less."""
    return round(time.time(), 3)
