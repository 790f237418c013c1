"""Weights in Hugging Face's layout: start a run from a folder of safetensors, export a checkpoint.

Parameters of a stock class are named `hf.` + the stock name; our own families come with a table of
targets (models/stock.py). Reads go by slice: a rank reads its own boxes. Export and import have one
tensor in memory at a time; a file ends where the next tensor would make it larger than FILE_BYTES.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..atomic_file import atomic_file, write_atomic
from ..engine.boxes import Box, Index
from ..given import check_no_weights
from ..identity import Identity, ModelIdentity, read_identity
from ..metrics.progress import Progress
from .manifest import CheckpointError, Files, Manifest, Stored
from .stored_experts import as_named
from .tensor_file import Entry, write_tensors
from .tied import check_tied

PREFIX = "hf."
# A stock tensor: its name, our parameters concatenated along dim 0, and whether it is then turned.
Target = tuple[str, tuple[str, ...], bool]
FILE_BYTES = 4 * 2**30
_IMPORT = "; meshwright import makes such a folder of a Hugging Face one"


def stored_weights(folder: Path) -> dict[str, list[Stored]]:
    """Every tensor of a folder's safetensors files by its name there, and by the one that a class
    has for it where it stacks experts: in as many boxes as there are tensors of it.

    Raises CheckpointError where the folder has none, or a file's header is damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds 0 safetensors files; give a Hugging Face folder")
    found: dict[str, Stored] = {}
    for path in files:
        try:
            found |= {item.key: item for item in _tensors_of(path)}
        except SafetensorError as error:
            raise CheckpointError(f"{path}: not a safetensors file: {error}") from None
    return as_named(found)


def _tensors_of(path: Path) -> Iterator[Stored]:
    with safe_open(path, framework="pt") as handle:
        for key in handle.keys():
            shape = tuple(handle.get_slice(key).get_shape())
            yield Stored(Box((0,) * len(shape), shape), path.name, key)


def main_dtype(folder: Path) -> str:
    """Return the dtype that most elements of a folder's weights have, as torch names it."""
    count: Counter[torch.dtype] = Counter()
    with Files(folder) as files:
        for items in stored_weights(folder).values():
            for item in items:
                count[files.dtype(item)] += item.box.numel
    ((dtype, _),) = count.most_common(1)
    return str(dtype).removeprefix("torch.")


def weights_identity(folder: Path, ours: Identity) -> Identity:
    """The identity that a folder of weights states: in its identity.json, or where `ours` is of a
    stock class in its config.json.

    Raises IdentityError or CheckpointError where the file is damaged.
    """
    said = read_identity(folder)
    path = folder / "config.json"
    if said.model or not (ours.model and ours.model.kind == "hf") or not path.is_file():
        return said
    fields = _stock_fields(path, whole=_TEXT_PART in ours.model.config)
    return Identity(ModelIdentity("hf", str(folder), "", fields, ""), said.tokenizer)


_TEXT_PART = "text_config"  # of the config of a model with parts


def _stock_fields(path: Path, whole: bool) -> dict[str, Any]:
    """The fields that a config.json gives, in newer words; null leaves a choice to the library.

    whole: of all parts, else of its text part if it has parts.
    """
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        said = said if whole else said.get(_TEXT_PART, said)
        found = {key: value for key, value in said.items() if value is not None}
        if "rope_theta" in found:
            scaling = found.get("rope_scaling") or {}
            scaling = {{"type": "rope_type"}.get(key, key): n for key, n in scaling.items()}
            found.setdefault("rope_parameters", {"rope_theta": found["rope_theta"], **scaling})
        return found
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: no config of a model: {error}") from None


def _stored_as(stored: dict[str, list[Stored]], name: str) -> list[Stored] | None:
    stock = name.removeprefix(PREFIX)
    return stored.get(stock) or stored.get(stock.partition(".")[2])


def has_weight(stored: dict[str, list[Stored]], name: str) -> bool:
    """Tell whether a folder has the tensor of a parameter."""
    return _stored_as(stored, name) is not None


def find_weight(
    stored: dict[str, list[Stored]], name: str, shape: tuple[int, ...], hint: str = ""
) -> list[Stored]:
    """The stored boxes of a logical parameter, also where the base model's prefix is left out.

    Raises CheckpointError where there is none, with `hint` as the way out, or of another shape.
    """
    stock, items = name.removeprefix(PREFIX), _stored_as(stored, name)
    if items is None:
        raise CheckpointError(
            f"no tensor {stock} among the {len(stored)} of the weights' folder{hint}"
        )
    ends = [[a + n for a, n in zip(x.box.offsets, x.box.sizes, strict=True)] for x in items]
    there = tuple(map(max, zip(*ends, strict=True)))
    if there != shape:
        raise CheckpointError(
            f"tensor {stock} has shape {list(there)}, the model wants {list(shape)}"
        )
    return items


def find_own_weight(
    stored: dict[str, list[Stored]], name: str, shape: tuple[int, ...]
) -> list[Stored]:
    """The stored boxes of a parameter of the running model, a stock class or one of ours."""
    return find_weight(stored, name, shape, "" if name.startswith(PREFIX) else _IMPORT)


def export_weights(manifest: Manifest, targets: Sequence[Target], out: Path) -> list[str]:
    """Write a checkpoint's parameters as safetensors under other names; returns the files written.

    Raises CheckpointError where the checkpoint lacks a parameter, or has one that no target takes.
    """
    kept = {name for kind, name in manifest.boxes if kind == "param"}
    wanted = [part for _, parts, _ in targets for part in parts]
    if sorted(wanted) != sorted(kept):
        odd = sorted(set(wanted) ^ kept)
        raise CheckpointError(
            f"{manifest.path} is of {manifest.state.model}, with {len(kept)} parameters; the model "
            f"has {len(wanted)}, and {odd[0]} is in one of them only"
        )
    _make_empty(out)
    with Files(manifest.path) as files:
        entries = [_exported(target, manifest, files) for target in targets]
        return _write_files("export", entries, out)


def _exported(target: Target, manifest: Manifest, files: Files) -> Entry:
    """A stock tensor of a checkpoint's parameters."""
    name, parts, transposed = target
    shapes = [manifest.params[part] for part in parts]
    boxes = [_covering(manifest, part) for part in parts]
    dtype = reduce(torch.promote_types, (files.dtype(items[0]) for items in boxes))
    shape = (sum(s[0] for s in shapes), *shapes[0][1:]) if shapes[0] else ()

    def make() -> Tensor:
        whole = torch.empty(shape[::-1] if transposed else shape, dtype=dtype)
        ours = whole.T if transposed else whole
        views = ours.split([s[0] for s in shapes]) if shape else (ours,)
        for view, items in zip(views, boxes, strict=True):
            assemble(view, items, files)
        return whole

    return Entry(name, dtype, shape[::-1] if transposed else shape, make)


def _covering(manifest: Manifest, param: str) -> list[Stored]:
    """The boxes of a parameter. Raises CheckpointError where they are not all of it."""
    items = manifest.boxes["param", param]
    found, wanted = sum(item.box.numel for item in items), math.prod(manifest.params[param])
    if found != wanted:
        raise CheckpointError(
            f"{manifest.path} holds {found} of the {wanted} elements of {param}; it is damaged, "
            "take the one before"
        )
    return items


def assemble(whole: Tensor, items: list[Stored], files: Files) -> None:
    """Fill a logical tensor from its boxes."""
    box = Box((0,) * whole.ndim, tuple(whole.shape))
    for item in items:
        whole[item.box.slices_of(box)] = files.read(item, item.box)


def import_weights(
    folder: Path, targets: Sequence[Target], shapes: dict[str, Index], out: Path
) -> list[str]:
    """The way back: stock safetensors as our own names, for `--weights`; returns the files written.

    shapes: of our parameters. Raises CheckpointError where a stock tensor is missing or of another
    shape.
    """
    stored = stored_weights(folder)
    with Files(folder) as files:
        items = chain.from_iterable(stored.values())
        check_tied(items, {name for name, _, _ in targets}, files)
        entries = [
            entry for target in targets for entry in _imported(target, stored, shapes, files)
        ]
        _make_empty(out)
        return _write_files("import", entries, out)


def _imported(
    target: Target, stored: dict[str, list[Stored]], shapes: dict[str, Index], files: Files
) -> Iterator[Entry]:
    """Our parameters of a stock tensor."""
    name, parts, transposed = target
    rows = [shapes[part][0] for part in parts]
    shape = (sum(rows), *shapes[parts[0]][1:])
    (item,) = find_weight(stored, name, shape[::-1] if transposed else shape)
    for number, part in enumerate(parts):
        start, size = sum(rows[:number]), shapes[part]
        box = Box((start, *(0,) * (len(size) - 1)), size)
        yield Entry(part, files.dtype(item), size, partial(_cut, files, item, box, transposed))


def _cut(files: Files, item: Stored, box: Box, transposed: bool) -> Tensor:
    """A box of a stock tensor, which may lie turned in its file."""
    if transposed:
        return files.read(item, Box(box.offsets[::-1], box.sizes[::-1])).T
    return files.read(item, box)


def _make_empty(out: Path) -> None:
    """A folder for weights. Raises GivenError where others lie in it."""
    out.mkdir(parents=True, exist_ok=True)
    for part in out.glob(".model*.part"):  # of a command that was killed
        part.unlink()
    check_no_weights(out)


def _write_files(what: str, entries: Sequence[Entry], out: Path) -> list[str]:
    """All files, or none: each gets its name once the last is written."""
    groups = list(_groups(sorted(entries, key=lambda entry: entry.name)))
    names = [_file_name(number, len(groups)) for number in range(1, len(groups) + 1)]
    progress = _Written(what, entries)
    with closing(progress), ExitStack() as files:
        for name, group in zip(names, groups, strict=True):
            write_tensors(files.enter_context(atomic_file(out / name)), group, progress.wrote)
    if len(groups) > 1:
        where = {e.name: name for name, group in zip(names, groups, strict=True) for e in group}
        index = {"metadata": {"total_size": progress.bar.total}, "weight_map": where}
        write_atomic(out / "model.safetensors.index.json", json.dumps(index, indent=1))
    return names


class _Written:
    """A progress line of the tensors and bytes that are written."""

    def __init__(self, what: str, entries: Sequence[Entry]) -> None:
        self.bar = Progress(what, sum(entry.num_bytes for entry in entries))
        self.count, self.tensors, self.bytes = len(entries), 0, 0

    def wrote(self, entry: Entry) -> None:
        self.tensors, self.bytes = self.tensors + 1, self.bytes + entry.num_bytes
        note = f"{self.tensors} of {self.count} tensors, {self.bytes / 2**30:,.2f} GiB"
        self.bar.at(self.bytes, note)

    def close(self) -> None:
        self.bar.clear()


def _file_name(number: int, count: int) -> str:
    if count == 1:
        return "model.safetensors"
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def _groups(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Entries in files of at most FILE_BYTES."""
    group: list[Entry] = []
    size = 0
    for entry in entries:
        if group and size + entry.num_bytes > FILE_BYTES:
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.num_bytes
    yield group
