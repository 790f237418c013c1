"""Saving: a copy to host memory beside the next step, files behind it.

On a GPU the copy runs on a stream of its own, into pinned memory that is kept for the next save; it
has the time of the next forward and backward, as only the update after them waits for it.

A checkpoint is a folder `step_00000100/`: one `rank_00000.safetensors` and one
`rank_00000.json` (its boxes) per rank, and `manifest.json`, written last: the files with their
sizes and SHA-256, the parameters' shapes and the run's state. The folder is written as
`step_00000100.part` and renamed when complete, so a name without `.part` is whole.
"""

import json
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ..atomic_file import write_atomic
from ..engine.boxes import Box
from ..engine.buckets import FlatBucket
from ..engine.executor import Executor
from ..engine.shards import owns, owns_whole
from ..host import host_name
from ..identity import Identity
from ..optimizers.optimizer import Optimizer
from ..optimizers.rule import Part, Run
from .manifest import (
    VERSION,
    CheckpointError,
    State,
    any_rank,
    complete,
    digest_of,
    folder_of,
    on_any_rank,
    rank,
    sha256,
    step_of,
    world,
)

Key = TypeVar("Key")


class Checkpointer:
    """Writer of one run's checkpoints in `folder`.

    keep: newest ones kept, 0 for all. keep_every: those of its multiples are never removed.
    prepare: take the host memory now, in the background, as pinning gigabytes takes seconds.
    write_limit_s: seconds after which a write counts as failed: the disk of a rank hangs.
    identity, options: of the model and its tokenizer, and of the run, for the manifests. ranks:
    those that write into the folder, all if not given; the first of them writes the manifest.
    """

    def __init__(
        self,
        folder: Path,
        executor: Executor[Optimizer],
        keep: int = 0,
        keep_every: int = 0,
        prepare: bool = False,
        write_limit_s: float = math.inf,
        identity: Identity | None = None,
        options: dict[str, Any] | None = None,
        ranks: Sequence[int] = (),
    ) -> None:
        self.folder, self.executor, self.identity = folder, executor, identity or Identity()
        self.options, self.ranks = options, tuple(ranks) or tuple(range(world()))
        self._given_up = threading.Event()
        self.keep, self.keep_every = keep, keep_every
        self.write_limit_s, self._deadline_s = write_limit_s, math.inf
        self._writer: threading.Thread | None = None
        self._awaited = rank()  # whose file the writer waits for
        self._failure: BaseException | None = None
        # By bucket and number of a run, then kind; states that are stored whole by kind and name.
        self._host: dict[tuple[str, int], dict[str, Tensor]] = {}
        self._host_whole: dict[tuple[str, str], Tensor] = {}
        self._stream: torch.cuda.Stream | None = None
        self._preparing = threading.Thread(target=self._prepare, daemon=True)
        if prepare:
            self._preparing.start()

    def save(self, state: State) -> float:
        """Copy this rank's boxes to the host and write them in the background.

        Returns the seconds that the step waited. Raises CheckpointError, on all ranks, when an
        earlier write failed on one (a full disk, say).
        """
        started = time.perf_counter()
        self.wait()
        self._clear(_part(self.folder, state))
        copied = self._copy_to_host()
        self._deadline_s, self._awaited = time.monotonic() + self.write_limit_s, rank()
        # A daemon: a rank that fails ends at once, its write with it; a run that ends well waits.
        self._writer = threading.Thread(target=self._write, args=(state, copied), daemon=True)
        self._writer.start()
        return time.perf_counter() - started

    def _clear(self, part: Path) -> None:
        """Remove what an attempt that died left, before any rank writes: never mix the two."""
        if self._leads:
            shutil.rmtree(part, ignore_errors=True)
        if world() > 1:
            dist.barrier()

    def _copy_to_host(self) -> torch.cuda.Event | None:
        """Start copying what this rank stores; an event that tells when that is done."""
        device = self.executor.device
        if self._preparing.is_alive():
            self._preparing.join()
        self._prepare()
        if device.type != "cuda":
            self._copy()
            return None
        stream = self._stream = self._stream or torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._copy()
            copied = stream.record_event()
        self.executor.optimizer.weight_copy.begin(copied)
        return copied

    def _stored(self) -> Iterator[tuple[FlatBucket, int, Run]]:
        """Runs, by bucket and number in it, of which this rank stores a box."""
        for bucket in self.executor.buckets.values():
            for number, run in enumerate(self.executor.optimizer.runs_of(bucket)):
                if self._parts(bucket, run):
                    yield bucket, number, run

    @property
    def _leads(self) -> bool:
        """Tell whether this rank writes the manifests."""
        return rank() == self.ranks[0]

    def _parts(self, bucket: FlatBucket, run: Run) -> list[Part]:
        return [p for p in run.parts if self.keeps(bucket, p.param.name)]

    def keeps(self, bucket: FlatBucket, param: str) -> bool:
        """Tell whether this rank stores its box of a parameter."""
        return owns(bucket, self.executor.layout, param)

    def keeps_whole(self, bucket: FlatBucket) -> bool:
        """Tell whether this rank stores what all ranks of a bucket hold whole."""
        return owns_whole(bucket)

    def manifest(self, state: State, part: Path) -> dict[str, Any]:
        """Return what is said of a checkpoint in the folder `part`, once all ranks wrote theirs."""
        said = {
            "version": VERSION,
            "state": asdict(state),
            "identity": self.identity.to_json(),
            "params": {p.name: p.shape for p in self.executor.layout.params},
            "ranks": self._gather_entries(part),
        }
        if frozen := self.executor.layout.frozen:
            said["frozen"] = sorted(frozen)
        return said if self.options is None else {**said, "options": self.options}

    def _whole(self) -> Iterator[tuple[tuple[str, str], Tensor]]:
        """States that this rank stores whole, by kind and parameter."""
        for bucket in filter(self.keeps_whole, self.executor.optimizer.buckets):
            yield from self.executor.optimizer.rule.whole_states(bucket).items()

    def _prepare(self) -> None:
        """Host memory for what this rank stores, kept from save to save."""
        for bucket, number, run in self._stored():
            host = self._host.setdefault((bucket.bucket.name, number), {})
            for kind in self.executor.optimizer.stored_kinds(run):
                _make_room(host, kind, run.weights)
        for key, whole in self._whole():
            _make_room(self._host_whole, key, whole)

    def _copy(self) -> None:
        for bucket, number, run in self._stored():
            host = self._host[bucket.bucket.name, number]
            for kind, flat in self.executor.optimizer.stored(run).items():
                host[kind].copy_(flat.detach(), non_blocking=True)
        for key, whole in self._whole():
            self._host_whole[key].copy_(whole, non_blocking=True)

    def _boxes(self) -> tuple[dict[str, Tensor], list[dict]]:
        """This rank's boxes in the host copy, by key, and what the manifest says of them."""
        tensors: dict[str, Tensor] = {}
        boxes: list[dict] = []
        for kind, param, box, tensor in self._owned():
            key = f"{kind}|{param}|{','.join(map(str, box.offsets))}"
            tensors[key] = tensor.contiguous()
            boxes.append({"kind": kind, "param": param, "key": key, **asdict(box)})
        return tensors, boxes

    def _owned(self) -> Iterator[tuple[str, str, Box, Tensor]]:
        """(kind, parameter, logical box, tensor in the host copy) of what this rank stores."""
        for bucket, number, run in self._stored():
            for kind, flat in self._host[bucket.bucket.name, number].items():
                for part in self._parts(bucket, run):
                    yield kind, part.param.name, part.piece.box, part.view(flat)
        for (kind, param), whole in self._host_whole.items():
            yield kind, param, Box((0,) * whole.ndim, tuple(whole.shape)), whole

    def _write(self, state: State, copied: torch.cuda.Event | None) -> None:
        try:
            if copied is not None:
                copied.synchronize()
            self._publish(state, *self._boxes())
        except Exception as error:  # the step's thread raises it: none may die unseen here
            self._failure = error

    def _publish(self, state: State, tensors: dict[str, Tensor], boxes: list[dict]) -> None:
        part = _part(self.folder, state)
        final = part.with_suffix("")
        part.mkdir(parents=True, exist_ok=True)
        name = f"rank_{rank():05d}"
        _save(tensors, part / f"{name}.safetensors")
        write_atomic(part / f"{name}.json", json.dumps(_entry(part, name, boxes)))
        if self._leads:
            write_atomic(part / "manifest.json", _sealed(self.manifest(state, part)))
            _sync(part)
            shutil.rmtree(final, ignore_errors=True)
            os.replace(part, final)
            _sync(self.folder)
            self.published(state)
            self._retire()

    def published(self, state: State) -> None:
        """React to a whole checkpoint, on the rank that writes manifests; by default do nothing."""

    def _gather_entries(self, part: Path) -> list[dict]:
        """Every rank's entry, once written; ranks write behind their steps: files are signals."""
        entries = []
        for number in self.ranks:
            path = part / f"rank_{number:05d}.json"
            while not path.exists():
                self._awaited = number
                if self._given_up.wait(0.02):
                    raise CheckpointError(f"rank {number} wrote nothing")
            entries.append(json.loads(path.read_text()))
        return entries

    def _retire(self) -> None:
        """Remove all but the newest `keep`, and those of `keep_every`."""
        old = complete(self.folder)[: -self.keep] if self.keep else []
        for path in old:
            step = step_of(path)
            if not self.keep_every or step % self.keep_every:
                shutil.rmtree(path, ignore_errors=True)

    def wait(self) -> None:
        """Wait until the last save of every rank is on disk. To be called on all ranks.

        Raises CheckpointError on all of them if one could not write: after a run's last step
        nothing else would tell the others, and rank 0 would wait for that rank's file.
        """
        pending = True
        while pending:
            if self._writer is not None:
                self._writer.join(timeout=0.2)
            self.executor.beacon.mark("SAVE")
            failed, pending = on_any_rank(self.failed, self._writing)
            if failed:
                self.fail_together()
        self._writer = None

    @property
    def failed(self) -> bool:
        """Tell whether this rank's last write failed, or hangs; other ranks do not know it."""
        if self._failure is None and self._writing and time.monotonic() > self._deadline_s:
            limit = f"{self.write_limit_s:g} s, ten times --hang-after"
            self._failure = CheckpointError(f"rank {self._awaited} did not write within {limit}")
        return self._failure is not None

    @property
    def _writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def fail_together(self) -> None:
        """Raise CheckpointError on all ranks, with the complaint of the first whose write failed.

        To be called on all, once one has failed.
        """
        raise CheckpointError(any_rank(self._complaint()))

    def _complaint(self) -> str:
        if self._failure is None:
            return ""
        return (
            f"the checkpoint in {self.folder} could not be written by rank {rank()} on "
            f"{host_name()}: {self._failure}; free space, keep fewer checkpoints by --keep, "
            "or choose another --out, and resume from the checkpoint before"
        )


def _make_room(host: dict[Key, Tensor], key: Key, like: Tensor) -> None:
    if key not in host:
        host[key] = torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)


def _part(folder: Path, state: State) -> Path:
    return folder_of(folder, state.step).with_suffix(".part")


def _sealed(manifest: dict) -> str:
    """As JSON, with its own digest; taken of what a reader will parse, in which keys are text."""
    parsed = json.loads(json.dumps(manifest))
    return json.dumps(parsed | {"sha256": digest_of(parsed)})


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a file that those may read whom the umask lets; safetensors makes it its owner's."""
    try:
        path.touch()
        mode = path.stat().st_mode
        save_file(tensors, path)
        path.chmod(mode)
        _sync(path)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path.name}: {why}") from error


def _sync(path: Path) -> None:
    """A file's bytes, or a folder's names, are on disk: older checkpoints may go only then."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _entry(part: Path, name: str, boxes: list[dict]) -> dict:
    file = part / f"{name}.safetensors"
    return {
        "file": file.name,
        "bytes": file.stat().st_size,
        "sha256": sha256(file),
        "boxes": boxes,
    }
