"""Checkpoints that any plan resumes: boxes of logical tensors in safetensors, state in JSON.

A checkpoint is a folder `step_00000100/`: one `rank_00000.safetensors` and one
`rank_00000.json` (its boxes) per rank, and `manifest.json`, written last: the files with their
sizes and SHA-256, and the run's state. The folder is written as `step_00000100.part` and renamed
when complete, so a name without `.part` is whole. Nothing is unpickled.

Saving copies to host memory in the step and writes behind it. Each element is stored once: by dp
rank 0 where shards are replicated, by tp rank 0 where tensors are, by its first home when tied.
"""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from . import mesh
from .boxes import Box, Cut, Piece, pieces_of
from .buckets import FlatBucket
from .executor import Executor
from .layout import Layout

VERSION = "meshwright checkpoint v1"
KINDS = ("param", "exp_avg", "exp_avg_sq")


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or of another model."""


@dataclass(frozen=True)
class State:
    """What a run needs besides tensors. step: optimizer steps done; samples: rows seen."""

    step: int
    samples: int
    seed: int
    data: str
    model: str


@dataclass(frozen=True)
class Stored:
    """Where a box lies: file of the folder and key in it."""

    box: Box
    file: str
    key: str


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _local_pieces(bucket: FlatBucket, layout: Layout) -> Iterator[tuple[str, int, Piece]]:
    """(parameter, first element in the shard, piece) of everything in this rank's shard."""
    low = bucket.index * bucket.shard_numel
    for entry in bucket.bucket.entries:
        numel = 1
        for size in entry.shape:
            numel *= size
        first = max(entry.offset, low) - entry.offset
        last = min(entry.offset + numel, low + bucket.shard_numel) - entry.offset
        if first >= last:
            continue
        shards = layout.param(entry.param).shards
        cuts = tuple(Cut(d, o, mesh.coordinate(a), mesh.size(a)) for d, o, a in shards)
        for piece in pieces_of(entry.shape, cuts, first, last):
            yield entry.param, entry.offset + first - low, piece


def _owns(bucket: FlatBucket, layout: Layout, param: str) -> bool:
    """Whether this rank stores its box of a parameter."""
    if bucket.bucket.stages[0] != mesh.coordinate("pp"):
        return False
    if bucket.cuts == 1 and mesh.coordinate("dp") != 0:
        return False
    return bool(layout.param(param).shards) or mesh.coordinate("tp") == 0


def _view(flat: Tensor, start: int, piece: Piece) -> Tensor:
    numel = 1
    for size in piece.local:
        numel *= size
    begin = start + piece.start
    return flat[begin : begin + numel].view(piece.local)[piece.slices]


class Checkpointer:
    """Saves and loads checkpoints of one run in `folder`."""

    def __init__(self, folder: Path, executor: Executor, keep: int = 0) -> None:
        self.folder, self.executor, self.keep = folder, executor, keep
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, state: State) -> float:
        """Copy this rank's boxes to the host and write them in the background.

        Returns the seconds that the step waited. Raises CheckpointError when an earlier write
        failed (a full disk, say).
        """
        started = time.perf_counter()
        self.wait()
        tensors, boxes = self._snapshot()
        self._writer = threading.Thread(target=self._write, args=(state, tensors, boxes))
        self._writer.start()
        return time.perf_counter() - started

    def _snapshot(self) -> tuple[dict[str, Tensor], list[dict]]:
        tensors: dict[str, Tensor] = {}
        boxes: list[dict] = []
        layout = self.executor.layout
        for bucket in self.executor.buckets.values():
            flats = self.executor.optimizer.tensors(bucket)
            for param, start, piece in _local_pieces(bucket, layout):
                if not _owns(bucket, layout, param):
                    continue
                for kind in KINDS:
                    key = f"{kind}|{param}|{','.join(map(str, piece.box.offsets))}"
                    part = _view(flats[kind], start, piece)
                    tensors[key] = part.detach().to("cpu", copy=True).contiguous()
                    boxes.append({"kind": kind, "param": param, "key": key, **asdict(piece.box)})
        return tensors, boxes

    def _write(self, state: State, tensors: dict[str, Tensor], boxes: list[dict]) -> None:
        try:
            self._publish(state, tensors, boxes)
        except (OSError, SafetensorError, CheckpointError) as error:
            self._failure = error

    def _publish(self, state: State, tensors: dict[str, Tensor], boxes: list[dict]) -> None:
        final = self.folder / f"step_{state.step:08d}"
        part = final.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        name = f"rank_{_rank():05d}"
        save_file(tensors, part / f"{name}.safetensors")
        _write_whole(part / f"{name}.json", json.dumps(_entry(part, name, boxes)))
        if _rank() == 0:
            entries = _gather_entries(part, _world())
            manifest = {"version": VERSION, "state": asdict(state), "ranks": entries}
            _write_whole(part / "manifest.json", json.dumps(manifest))
            shutil.rmtree(final, ignore_errors=True)
            os.replace(part, final)
            self._retire()

    def _retire(self) -> None:
        if self.keep:
            for old in complete(self.folder)[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)

    def wait(self) -> None:
        """Until the last save is on disk; raises CheckpointError if it failed."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise CheckpointError(
                f"the checkpoint in {self.folder} could not be written: {failure}; free space or "
                "choose another --out, and resume from the checkpoint before"
            )

    def load(self, path: Path) -> State:
        """Fill parameters and moments from a checkpoint of any plan of the same model.

        Raises CheckpointError when files are missing or damaged, or boxes do not cover a tensor.
        """
        manifest = read_manifest(path)
        state = State(**manifest["state"])
        layout = self.executor.layout
        stored = index_of(manifest)
        with Files(path) as files:
            for bucket in self.executor.buckets.values():
                flats = self.executor.optimizer.tensors(bucket)
                for param, start, piece in _local_pieces(bucket, layout):
                    for kind in KINDS:
                        target = _view(flats[kind], start, piece)
                        _fill(target, piece.box, stored.get((kind, param), []), files, param)
        self.executor.optimizer.publish()
        self.executor.optimizer.set_step(state.step)
        return state


def load_weights(executor: Executor, folder: Path) -> int:
    """Parameters from a folder of Hugging Face safetensors; moments stay. Returns how many."""
    from .weights import find_weight, stored_weights

    stored = stored_weights(folder)
    layout, count = executor.layout, set()
    with Files(folder) as files:
        for bucket in executor.buckets.values():
            for param, start, piece in _local_pieces(bucket, layout):
                item = find_weight(stored, param, layout.param(param).shape)
                flat = executor.optimizer.tensors(bucket)["param"]
                _fill(_view(flat, start, piece), piece.box, [item], files, param)
                count.add(param)
    executor.optimizer.publish()
    return len(count)


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".tmp")
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _entry(part: Path, name: str, boxes: list[dict]) -> dict:
    file = part / f"{name}.safetensors"
    return {
        "file": file.name,
        "bytes": file.stat().st_size,
        "sha256": _sha256(file),
        "boxes": boxes,
    }


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _gather_entries(part: Path, world: int, timeout_s: float = 1800.0) -> list[dict]:
    """Every rank's entry, once written; ranks write behind their steps, so files are the signal."""
    deadline = time.monotonic() + timeout_s
    entries = []
    for rank in range(world):
        path = part / f"rank_{rank:05d}.json"
        while not path.exists():
            if time.monotonic() > deadline:
                raise CheckpointError(f"{path} did not appear within {timeout_s:.0f} s")
            time.sleep(0.02)
        entries.append(json.loads(path.read_text()))
    return entries


def complete(folder: Path) -> list[Path]:
    """Whole checkpoints of a run, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.glob("step_*") if p.is_dir() and p.suffix != ".part")


def read_manifest(path: Path) -> dict:
    """The manifest, its files present, of the right size and digest."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        version = manifest["version"]
        entries = [(e["file"], e["bytes"], e["sha256"]) for e in manifest["ranks"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: no readable manifest.json: {error}") from None
    if version != VERSION:
        raise CheckpointError(f"{path}: version {version!r}, expected {VERSION!r}")
    for name, size, _ in entries:
        file = path / Path(name).name
        found = file.stat().st_size if file.exists() else 0
        if found != size:
            raise CheckpointError(f"{file}: {found} bytes, the manifest says {size}")
    for name, _, digest in entries[_rank() :: _world()]:
        if _sha256(path / Path(name).name) != digest:
            raise CheckpointError(f"{path / name}: contents differ from the manifest's SHA-256")
    return manifest


def newest_good(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that reads, and why newer ones do not; the same on every rank."""
    complaints: list[str] = []
    for path in reversed(complete(folder)):
        problem = ""
        try:
            read_manifest(path)
        except CheckpointError as error:
            problem = str(error)
        problem = _any_rank(problem)
        if not problem:
            return path, complaints
        complaints.append(problem)
    return None, complaints


def _any_rank(problem: str) -> str:
    """A complaint of any rank, on all ranks."""
    if _world() == 1:
        return problem
    flag = torch.tensor([1 if problem else 0], device=mesh.device())
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return problem or ("another rank found a damaged file" if int(flag) else "")


def index_of(manifest: dict) -> dict[tuple[str, str], list[Stored]]:
    found: dict[tuple[str, str], list[Stored]] = {}
    for entry in manifest["ranks"]:
        for box in entry["boxes"]:
            item = Box(tuple(box["offsets"]), tuple(box["sizes"]))
            stored = Stored(item, entry["file"], box["key"])
            found.setdefault((box["kind"], box["param"]), []).append(stored)
    return found


class Files:
    """Open safetensors files of a checkpoint, read by slice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open: dict[str, object] = {}

    def read(self, item: Stored, part: Box) -> Tensor:
        if item.file not in self.open:
            self.open[item.file] = safe_open(self.path / Path(item.file).name, framework="pt")
        handle = self.open[item.file]
        if not item.box.sizes:
            return handle.get_tensor(item.key)  # type: ignore[attr-defined]
        return handle.get_slice(item.key)[part.slices_of(item.box)]  # type: ignore[attr-defined]

    def __enter__(self) -> "Files":
        return self

    def __exit__(self, *_: object) -> None:
        self.open.clear()


def _fill(target: Tensor, box: Box, stored: list[Stored], files: Files, name: str) -> None:
    """Copy what is stored of `box` into `target`; every element exactly once."""
    covered = 0
    for item in stored:
        part = item.box.overlap(box)
        if part is None:
            continue
        target[part.slices_of(box)].copy_(files.read(item, part))
        covered += part.numel
    if covered != box.numel:
        raise CheckpointError(
            f"the checkpoint holds {covered} of the {box.numel} elements of {name} at "
            f"{list(box.offsets)}; it is of another model"
        )
