"""Weights in Hugging Face's layout: start a run from a folder of safetensors, export a checkpoint.

Parameters of a stock class are named `hf.` + the stock name; our own families come with a table of
targets (models/stock.py). Reads go by slice: a rank reads its own boxes. An export assembles one
tensor at a time and writes a file when the next tensor would make it larger than FILE_BYTES.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .boxes import Box
from .checkpoint.manifest import CheckpointError, Files, Stored, read_manifest

PREFIX = "hf."
# A stock tensor: its name, our parameters concatenated along dim 0, and whether it is then turned.
Target = tuple[str, tuple[str, ...], bool]
FILE_BYTES = 4 * 2**30


def stored_weights(folder: Path) -> dict[str, Stored]:
    """Every tensor of a folder's safetensors files, by its name there.

    Raises CheckpointError where the folder has none, or a file's header is damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds 0 safetensors files; give a Hugging Face folder")
    found = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as handle:
                for key in handle.keys():
                    shape = tuple(handle.get_slice(key).get_shape())
                    found[key] = Stored(Box((0,) * len(shape), shape), path.name, key)
        except SafetensorError as error:
            raise CheckpointError(f"{path}: not a safetensors file: {error}") from None
    return found


def find_weight(stored: dict[str, Stored], name: str, shape: tuple[int, ...]) -> Stored:
    """The stored tensor of a logical parameter, also where the base model's prefix is left out."""
    stock = name.removeprefix(PREFIX)
    item = stored.get(stock) or stored.get(stock.partition(".")[2])
    if item is None:
        raise CheckpointError(f"no tensor {stock} among the {len(stored)} of the weights' folder")
    if item.box.sizes != shape:
        raise CheckpointError(
            f"tensor {stock} has shape {list(item.box.sizes)}, the model wants {list(shape)}"
        )
    return item


def export_weights(checkpoint: Path, targets: Sequence[Target], out: Path) -> list[str]:
    """Write a checkpoint's parameters as safetensors under other names; returns the files written.

    One target is in memory at a time, and one file's worth of them when it is written.
    Raises CheckpointError where the checkpoint lacks a parameter, or has one that no target takes.
    """
    manifest = read_manifest(checkpoint)
    boxes = {name: items for (kind, name), items in manifest.boxes.items() if kind == "param"}
    wanted = [part for _, parts, _ in targets for part in parts]
    if sorted(wanted) != sorted(boxes):
        odd = sorted(set(wanted) ^ set(boxes))
        raise CheckpointError(
            f"{checkpoint} is of {manifest.state.model}, with {len(boxes)} parameters; the model "
            f"has {len(wanted)}, and {odd[0]} is in one of them only"
        )
    _make_empty(out)
    with Files(checkpoint) as files:

        def tensor(target: Target) -> Tensor:
            _, parts, transposed = target
            whole = torch.cat([assemble(boxes[part], files) for part in parts])
            return whole.T.contiguous() if transposed else whole

        return _write_files(targets, lambda t: _numel(boxes, t), tensor, out)


def import_weights(
    folder: Path, targets: Sequence[Target], shapes: dict[str, tuple[int, ...]], out: Path
) -> list[str]:
    """The way back: stock safetensors as our own names, for `--weights`; returns the files written.

    shapes: of our parameters. Raises CheckpointError where a stock tensor is missing or of another
    shape.
    """
    stored = stored_weights(folder)
    sources: dict[str, tuple[Stored, int, bool]] = {}
    for name, parts, transposed in targets:
        rows = [shapes[part][0] for part in parts]
        shape = (sum(rows), *shapes[parts[0]][1:])
        item = find_weight(stored, name, shape[::-1] if transposed else shape)
        starts = [sum(rows[:k]) for k in range(len(rows))]
        sources.update({p: (item, a, transposed) for p, a in zip(parts, starts, strict=True)})
    with Files(folder) as files:

        def tensor(target: Target) -> Tensor:
            item, start, transposed = sources[target[0]]
            size = shapes[target[0]]
            if transposed:
                part = Box((0, start), (size[1], size[0]))
                return files.read(item, part).T.contiguous()
            return files.read(item, Box((start, *(0,) * (len(size) - 1)), size))

        ours = [(name, (name,), False) for name in sources]
        _make_empty(out)
        return _write_files(ours, lambda t: math.prod(shapes[t[0]]), tensor, out)


def _make_empty(out: Path) -> None:
    """A folder for weights. Raises CheckpointError where others lie in it: a reader takes a
    `model.safetensors` before any index, so that they would be read in place of the new ones."""
    out.mkdir(parents=True, exist_ok=True)
    others = sorted(path.name for path in out.glob("*.safetensors*"))
    if others:
        raise CheckpointError(
            f"{out} holds {len(others)} files of weights already ({others[0]}); give another folder"
        )


def _numel(boxes: dict[str, list[Stored]], target: Target) -> int:
    return sum(item.box.numel for part in target[1] for item in boxes[part])


def _write_files(
    targets: Sequence[Target],
    numel: Callable[[Target], int],
    tensor: Callable[[Target], Tensor],
    out: Path,
) -> list[str]:
    groups = list(_groups(sorted(targets), numel))
    where: dict[str, str] = {}
    total = 0
    for number, group in enumerate(groups, 1):
        file = _file_name(number, len(groups))
        tensors = {target[0]: tensor(target) for target in group}
        save_file(tensors, out / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(tensors, file))
        total += sum(t.numel() * t.element_size() for t in tensors.values())
    if len(groups) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    return sorted(set(where.values()))


def _file_name(number: int, count: int) -> str:
    if count == 1:
        return "model.safetensors"
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def _groups(targets: Sequence[Target], numel: Callable[[Target], int]) -> Iterator[list[Target]]:
    """Targets in files of at most FILE_BYTES, counted at four bytes an element."""
    group: list[Target] = []
    size = 0
    for target in targets:
        bytes_ = 4 * numel(target)
        if group and size + bytes_ > FILE_BYTES:
            yield group
            group, size = [], 0
        group.append(target)
        size += bytes_
    yield group


def assemble(items: list[Stored], files: Files) -> Tensor:
    """A whole logical tensor from its boxes."""
    ends = [[a + n for a, n in zip(i.box.offsets, i.box.sizes, strict=True)] for i in items]
    shape = tuple(max(column) for column in zip(*ends, strict=True))
    first = files.read(items[0], items[0].box)
    whole = torch.empty(shape, dtype=first.dtype)
    target = Box((0,) * len(shape), shape)
    for item in items:
        whole[item.box.slices_of(target)] = files.read(item, item.box)
    return whole
