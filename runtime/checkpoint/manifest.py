"""What a checkpoint folder says of itself, and how its files are opened. Nothing is unpickled."""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..engine import mesh
from ..engine.boxes import Box
from ..identity import Identity
from ..metrics.progress import Progress
from .tensor_file import DTYPES

VERSION = "meshwright checkpoint v1"
_TEXT_BYTES = 2048


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or of another model."""


@dataclass(frozen=True)
class State:
    """The state of a run besides its tensors.

    step: optimizer steps done; updates: those of them that changed the weights (a skipped step does
    not). skipped: global batches passed over besides, rest: rows before the first of them (see
    Feed). samples: rows of `seq` tokens, up to where the data go on. tokens: of all steps done.
    data_identity, data_position: the data's hash, and where a stream goes on (data.Reader).
    optimizer: its name; numbers: what it keeps besides tensors. losses: the last ones, by which a
    spike is told.
    """

    step: int
    updates: int
    skipped: int
    samples: int
    seq: int
    seed: int
    data: str
    data_identity: str
    data_position: dict
    model: str
    optimizer: str
    numbers: dict
    losses: list
    rest: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Stored:
    """The place of a box: file of the folder and key in it. stacked: the tensor there lacks the
    first dim of the box, which is 1."""

    box: Box
    file: str
    key: str
    stacked: bool = False


@dataclass(frozen=True)
class Manifest:
    """params: logical shapes by name. boxes: what is stored of (kind, parameter). frozen: names of
    the parameters that were not trained, of which there is "param" alone. identity: of the model,
    and of the tokenizer of its data; of older checkpoints nothing is known. options: of the run by
    field name, None of older checkpoints."""

    path: Path
    state: State
    params: dict[str, tuple[int, ...]]
    boxes: dict[tuple[str, str], list[Stored]]
    frozen: frozenset[str] = frozenset()
    identity: Identity = Identity()
    options: dict[str, Any] | None = None


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def complete(folder: Path) -> list[Path]:
    """Whole checkpoints of a run, by step; what else lies in the folder is not ours."""
    if not folder.is_dir():
        return []
    found = (p for p in folder.iterdir() if p.is_dir() and re.fullmatch(r"step_\d{8,}", p.name))
    return sorted(found, key=step_of)


def folder_of(folder: Path, step: int) -> Path:
    """The checkpoint after `step` steps of a run that saves in `folder`."""
    return folder / f"step_{step:08d}"


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def read_manifest(path: Path, shows: bool = False) -> Manifest:
    """The manifest, once the files it names have its sizes and digests. shows: with progress.

    Digests are divided among the ranks. Raises CheckpointError, on all ranks if on one.
    """
    problem, manifest = "", None
    try:
        manifest = _read(path, shows)
    except CheckpointError as error:
        problem = str(error)
    except OSError as error:
        problem = f"{error.filename or path}: {error.strerror}"
    problem = any_rank(problem)
    if problem or manifest is None:
        raise CheckpointError(problem)
    return manifest


def read_part(path: Path, place: tuple[int, int]) -> Manifest:
    """The manifest of a host's part of a checkpoint, of which ranks may hold the same boxes.

    place: of this rank among those of the host, and their number, by which digests are divided.
    Raises CheckpointError on this rank alone.
    """
    manifest = _read(path, False, place)
    boxes = {
        key: list({s.box: s for s in stored}.values()) for key, stored in manifest.boxes.items()
    }
    return replace(manifest, boxes=boxes)


def _read(path: Path, shows: bool, place: tuple[int, int] | None = None) -> Manifest:
    try:
        data = json.loads((path / "manifest.json").read_text())
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{path}: no readable manifest.json: {why}") from None
    version = data.get("version") if isinstance(data, dict) else None
    if version is None:
        raise CheckpointError(f"{path}/manifest.json: lacks its version, expected {VERSION!r}")
    if version != VERSION:
        raise CheckpointError(f"{path}: version {version!r}, expected {VERSION!r}")
    if data.get("sha256") != digest_of(data):
        raise CheckpointError(f"{path}/manifest.json: contents differ from its own SHA-256")
    try:
        entries = [(path / Path(e["file"]).name, e["bytes"], e["sha256"]) for e in data["ranks"]]
        state = _state(data["state"])
        params = {name: _index(shape) for name, shape in data["params"].items()}
        boxes, frozen = _boxes(data["ranks"]), frozenset(data.get("frozen", []))
        identity = Identity.from_json(data["identity"]) if "identity" in data else Identity()
        options = dict(data["options"]) if "options" in data else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}/manifest.json: malformed: {error!r}") from None
    _check_files(entries, shows, place or (rank(), world()))
    return Manifest(path, state, params, boxes, frozen, identity, options)


def _state(values: dict) -> State:
    """Every field with its type, nothing else. Older checkpoints lack the last two."""
    older = "tokens" not in values
    values = {"rest": 0, "tokens": 0} | values
    for item in fields(State):
        if type(values[item.name]) is not item.type:
            raise TypeError(f"state.{item.name} is {values[item.name]!r}")
    if any(type(loss) is not float for loss in values["losses"]):
        raise TypeError(f"state.losses is {values['losses']!r}")
    state = State(**{item.name: values[item.name] for item in fields(State)})
    return replace(state, tokens=state.samples * state.seq) if older else state


def _boxes(entries: list[dict]) -> dict[tuple[str, str], list[Stored]]:
    found: dict[tuple[str, str], list[Stored]] = {}
    for entry in entries:
        for box in entry["boxes"]:
            item = Box(_index(box["offsets"]), _index(box["sizes"]))
            stored = Stored(item, Path(entry["file"]).name, box["key"])
            found.setdefault((box["kind"], box["param"]), []).append(stored)
    return found


def _index(numbers: list) -> tuple[int, ...]:
    if any(type(number) is not int or number < 0 for number in numbers):
        raise TypeError(f"{numbers!r} is no list of sizes")
    return tuple(numbers)


def digest_of(manifest: dict) -> str:
    """SHA-256 of what a manifest says, its own digest left out: a digit that flipped is seen."""
    said = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _check_files(entries: list[tuple[Path, int, str]], shows: bool, place: tuple[int, int]) -> None:
    for file, size, _ in entries:
        if not file.exists():
            raise CheckpointError(f"{file}: is missing, the manifest says {size} bytes")
        found = file.stat().st_size
        if found != size:
            raise CheckpointError(f"{file}: {found} bytes, the manifest says {size}")
    bar = Progress("check", sum(size for _, size, _ in entries)) if shows else None
    done = 0
    for file, size, digest in entries[place[0] :: place[1]]:
        if sha256(file) != digest:
            raise CheckpointError(f"{file}: contents differ from the manifest's SHA-256")
        done += size
        if bar is not None:
            bar.at(done, file.name)
    if bar is not None:
        bar.clear()


def newest_good(folder: Path, before: float = math.inf) -> tuple[Manifest | None, list[str]]:
    """The newest checkpoint that reads, and why newer ones do not; the same on every rank.

    before: only those of fewer steps count.
    """
    complaints: list[str] = []
    for path in reversed([p for p in seen_by_rank_0(folder) if step_of(p) < before]):
        try:
            return read_manifest(path), complaints
        except CheckpointError as error:
            complaints.append(str(error))
    return None, complaints


def none_reads(folder: Path, complaints: list[str], way_out: str) -> str:
    """The message where a run's checkpoints are all damaged, a line each; newest first."""
    lines = "\n".join(f"  {complaint}" for complaint in complaints)
    count = len(complaints)
    found = f"none of the {count} checkpoints" if count > 1 else "the only checkpoint"
    verb = "can" if count > 1 else "cannot"
    return f"{found} in {folder} {verb} be read; nothing was changed\n{lines}\n  {way_out}"


def seen_by_rank_0(folder: Path) -> list[Path]:
    """Return the checkpoints that rank 0 sees, on all ranks: a later look may see more of them."""
    steps = [step_of(path) for path in complete(folder)]
    if world() > 1:
        count = torch.tensor(len(steps), device=mesh.device())
        dist.broadcast(count, src=0)
        known = (steps + [0] * int(count))[: int(count)]
        found = torch.tensor(known, dtype=torch.int64, device=mesh.device())
        dist.broadcast(found, src=0)
        steps = found.tolist()
    return [folder_of(folder, step) for step in steps]


def on_any_rank(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether any rank set it; the same on all ranks."""
    if world() == 1:
        return flags
    both = torch.tensor(flags, dtype=torch.int32, device=mesh.device())
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return tuple(map(bool, both.tolist()))


def any_rank(problem: str) -> str:
    """The complaint of the first rank that has one, on all ranks; empty when none has."""
    if world() == 1:
        return problem
    source = torch.tensor(rank() if problem else world(), device=mesh.device())
    dist.all_reduce(source, op=dist.ReduceOp.MIN)
    return _text_of(int(source), problem) if int(source) < world() else ""


def text_of_rank_0(text: str) -> str:
    """Return the text of rank 0 on all ranks."""
    return text if world() == 1 else _text_of(0, text)


def texts_of_all(text: str) -> list[str]:
    """Return every rank's text, by rank, on all ranks; each is cut to what is sent."""
    if world() == 1:
        return [text]
    own = torch.tensor(list(_bytes_of(text)), dtype=torch.uint8, device=mesh.device())
    found = [torch.empty_like(own) for _ in range(world())]
    dist.all_gather(found, own)
    return [_text(sent) for sent in found]


def _text_of(source: int, text: str) -> str:
    """A text of one rank, on all ranks, cut to what is sent."""
    sent = torch.tensor(list(_bytes_of(text)), dtype=torch.uint8, device=mesh.device())
    dist.broadcast(sent, src=source)
    return _text(sent)


def _bytes_of(text: str) -> bytes:
    return text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")


def _text(sent: Tensor) -> str:
    return bytes(sent.tolist()).rstrip(b"\0").decode(errors="ignore")


class Files:
    """Open safetensors files of a checkpoint, read by slice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open: dict[str, Any] = {}

    def read(self, item: Stored, part: Box) -> Tensor:
        """The part of a stored box. Raises CheckpointError where the file holds something else."""
        with self._opened(item) as handle:
            found = self._slice(handle, item, part)
        if tuple(found.shape) != part.sizes:
            raise CheckpointError(
                f"{self.path / item.file}: {item.key} gave {list(found.shape)} of "
                f"{list(part.sizes)}: it is not the tensor that the manifest names"
            )
        return found

    def dtype(self, item: Stored) -> torch.dtype:
        """Read a stored tensor's dtype by its file's header; raises CheckpointError if unknown."""
        with self._opened(item) as handle:
            name = handle.get_slice(item.key).get_dtype()
        if name not in DTYPES:
            raise CheckpointError(
                f"{self.path / item.file}: {item.key} is of dtype {name}, which is none of "
                f"{', '.join(DTYPES)}"
            )
        return DTYPES[name]

    @contextmanager
    def _opened(self, item: Stored) -> Iterator[Any]:
        try:
            if item.file not in self.open:
                self.open[item.file] = safe_open(self.path / item.file, framework="pt")
            yield self.open[item.file]
        except (SafetensorError, OSError, IndexError) as error:
            raise CheckpointError(f"{self.path / item.file}: {item.key}: {error}") from None

    def _slice(self, handle: Any, item: Stored, part: Box) -> Tensor:
        if not item.box.sizes:
            return handle.get_tensor(item.key)
        slices, tensor = part.slices_of(item.box), handle.get_slice(item.key)
        return tensor[slices[1:]].unsqueeze(0) if item.stacked else tensor[slices]

    def __enter__(self) -> "Files":
        return self

    def __exit__(self, *_: object) -> None:
        self.open.clear()
