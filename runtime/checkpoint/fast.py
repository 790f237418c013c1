"""The fast tier: checkpoints on a disk of each host's own, written often, beside the durable ones.

DIR/RUN/HOST/step_00000100/ has the form of a durable checkpoint, of which it is a part: files of
this host's ranks, and a manifest of those. Each rank stores all that it holds, also what another
has, too, so that a host reads nothing that lies on others. A step counts where every rank finds on
its own host what it holds now, of the same save. OUT/fast.json tells of the newest.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..engine.buckets import FlatBucket
from ..engine.executor import Executor
from ..fast_mark import drop_mark, write_mark
from ..host import host_name
from ..optimizers.optimizer import Optimizer
from .load import check_covered
from .manifest import (
    CheckpointError,
    Manifest,
    State,
    any_rank,
    complete,
    folder_of,
    on_any_rank,
    rank,
    read_part,
    step_of,
    text_of_rank_0,
    texts_of_all,
)
from .store import Checkpointer

KEEP = 2
# Steps of which ranks tell each other: more than are kept, as what was left behind counts, too.
_TOLD = 8


class FastCheckpointer(Checkpointer):
    """Writer of one rank's part of the fast tier. start: the id of this start of the run. out: the
    run's folder, which is told of the newest checkpoint."""

    start = ""
    out: Path | None = None
    _latest = 0  # the step whose write goes on, or was the last

    def keeps(self, bucket: FlatBucket, param: str) -> bool:
        """Tell whether this rank stores its box: always, as other hosts cannot be read."""
        return True

    def keeps_whole(self, bucket: FlatBucket) -> bool:
        """Tell whether this rank stores what all hold whole: always."""
        return True

    def manifest(self, state: State, part: Path) -> dict[str, Any]:
        """Return what is said of this host's part of a checkpoint."""
        return {**super().manifest(state, part), "start": self.start}

    def published(self, state: State) -> None:
        """Tell of this checkpoint where the run's folder is."""
        if self.out is not None and rank() == 0:
            write_mark(self.out, state.step, str(self.folder.parent))

    def save(self, state: State) -> float:
        """Copy this rank's boxes and write them in the background, as for a durable checkpoint."""
        waited_s = super().save(state)
        self._latest = state.step
        return waited_s

    def give_up(self) -> tuple[str, bool]:
        """Leave out a save that failed on a rank; return why, and whether a write hangs. To be
        called on all ranks, after CheckpointError."""
        said = any_rank(self._failure_text())
        self._given_up.set()
        if self._writer is not None:
            self._writer.join(timeout=1.0)
        (hangs,) = on_any_rank(self._writing)
        self._given_up.clear()
        self._failure, self._writer = None, None
        left = [*self.folder.glob("step_*.part"), folder_of(self.folder, self._latest)]
        for path in left if self._leads else ():
            shutil.rmtree(path, ignore_errors=True)
        return said, hangs

    def _failure_text(self) -> str:
        why = self._failure
        return "" if why is None else f"rank {rank()} on {host_name()} in {self.folder}: {why}"


def host_folder(fast_dir: Path, out: Path) -> Path:
    """Return this host's folder of a run's fast tier."""
    key = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:12]
    return fast_dir / f"{out.resolve().name}-{key}" / host_name()


def ranks_here() -> list[int]:
    """Return the ranks on this host; to be called on all ranks."""
    hosts = texts_of_all(host_name())
    return [number for number, host in enumerate(hosts) if host == host_name()]


@dataclass(frozen=True)
class Save:
    """One save of the fast tier, as a host tells others of it. digest: of the run's state."""

    step: int
    start: str
    digest: str


class FastTier:
    """Fast tier of a run. folder: of this host. out: of the run. ranks: those here.

    start: id of this start of the run. starts: those before, with the step that each began with,
    the oldest first; only rank 0 need know them.
    """

    def __init__(
        self,
        folder: Path,
        out: Path,
        ranks: Sequence[int],
        start: str,
        starts: Sequence[tuple[str, int]],
    ) -> None:
        self.out, self.folder, self.ranks = out, folder, tuple(ranks)
        self.start, self.starts = start, list(starts)

    def newest(
        self, executor: Executor[Optimizer], above: int
    ) -> tuple[Manifest | None, list[str]]:
        """Return the newest checkpoint of more than `above` steps that every rank can read what it
        holds of, and why newer ones are not taken; alike on all ranks but for the manifest, which
        is of this host."""
        complaints: dict[int, str] = {}
        told = [_saves(text) for text in texts_of_all(json.dumps(self._own()))]
        known = {save for saves in told for save in saves if save.step > above}
        for save in sorted(self._in_line(known), key=lambda s: (-s.step, s.start, s.digest)):
            has = [save in saves for saves in told]
            if not all(has):
                count = f"{sum(has)} of {len(has)} ranks find it on their host"
                complaints.setdefault(save.step, f"step {save.step}: {count}")
                continue
            manifest, problem = self._read(executor, save.step)
            if manifest is not None and not problem:
                return manifest, list(complaints.values())
            complaints.setdefault(save.step, f"step {save.step}: {problem}")
        return None, list(complaints.values())

    def _own(self) -> list[list[Any]]:
        """Return the saves on this host, the newest last."""
        found = []
        for path in complete(self.folder)[-_TOLD:]:
            try:
                said = json.loads((path / "manifest.json").read_text())
                text = json.dumps(said["state"], sort_keys=True)
                digest = hashlib.sha256(text.encode()).hexdigest()[:16]
                found.append([step_of(path), str(said["start"])[:32], digest])
            except (OSError, ValueError, KeyError, TypeError):
                found.append([step_of(path), "", ""])
        return found

    def _in_line(self, known: set[Save]) -> set[Save]:
        """Return those of the saves from which no later start of the run turned away: it began with
        fewer steps. What cannot be told of is among them, to be complained of."""
        newest = sorted(known, key=lambda s: (-s.step, s.start, s.digest))
        good = [asdict(save) for save in newest if not save.start or self._kept(save)]
        return {Save(**said) for said in json.loads(text_of_rank_0(json.dumps(good[:_TOLD])))}

    def _kept(self, save: Save) -> bool:
        ids = [start for start, _ in self.starts]
        if save.start not in ids:
            return False
        later = self.starts[ids.index(save.start) + 1 :]
        return all(first >= save.step for _, first in later)

    def _read(self, executor: Executor[Optimizer], step: int) -> tuple[Manifest | None, str]:
        manifest, problem = None, ""
        try:
            place = self.ranks.index(rank()), len(self.ranks)
            manifest = read_part(folder_of(self.folder, step), place)
            check_covered(executor, manifest)
        except (CheckpointError, OSError) as error:
            problem = f"{host_name()}: {error}"
        return manifest, any_rank(problem)

    def forget(self, above: int) -> None:
        """Remove this host's checkpoints of more than `above` steps, which a run turned away from;
        by the first rank of the host."""
        if rank() == self.ranks[0]:
            for path in complete(self.folder):
                if step_of(path) > above:
                    shutil.rmtree(path, ignore_errors=True)
        if rank() == 0:
            drop_mark(self.out, above)

    def remove(self) -> None:
        """Remove all of this host's, behind a durable checkpoint of the run's last step."""
        if rank() == self.ranks[0]:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):  # others of this machine may have their own in it
                self.folder.parent.rmdir()
        if rank() == 0:
            drop_mark(self.out, -1)


def _saves(text: str) -> set[Save]:
    return {Save(*row) for row in json.loads(text)}
