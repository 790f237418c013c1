"""Weights in Hugging Face's layout: start a run from a folder of safetensors, export a checkpoint.

Parameters of a stock class are named `hf.` + the stock name, so no table of names is needed. Reads
go by slice: a rank reads its own boxes. An export assembles one tensor at a time and writes a file
when the next tensor would make it larger than FILE_BYTES.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .boxes import Box
from .checkpoint.manifest import CheckpointError, Files, Stored, read_manifest

PREFIX = "hf."
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


def export_weights(checkpoint: Path, config_folder: Path, out: Path) -> list[str]:
    """Write a checkpoint's parameters as a Hugging Face folder; returns the files written.

    checkpoint: of a model planned as `hf:DIR`. config_folder: that DIR; its JSON files and
    tokenizer go along.
    """
    manifest = read_manifest(checkpoint)
    boxes = {name: items for (kind, name), items in manifest.boxes.items() if kind == "param"}
    foreign = [name for name in boxes if not name.startswith(PREFIX)]
    if foreign:
        raise CheckpointError(
            f"{checkpoint} is of {manifest.state.model}, not of an hf:DIR model: "
            f"{len(foreign)} parameters such as {foreign[0]} have no stock name"
        )
    out.mkdir(parents=True, exist_ok=True)
    names = _write_shards(checkpoint, boxes, out)
    for path in config_folder.iterdir():
        if path.suffix in (".json", ".txt", ".model") and ".index." not in path.name:
            shutil.copy2(path, out / path.name)
    return [*names, "config.json"]


def _write_shards(checkpoint: Path, boxes: dict[str, list[Stored]], out: Path) -> list[str]:
    groups = list(_groups(boxes))
    where: dict[str, str] = {}
    total = 0
    with Files(checkpoint) as files:
        for number, names in enumerate(groups, 1):
            file = _file_name(number, len(groups))
            tensors = {n.removeprefix(PREFIX): assemble(boxes[n], files) for n in names}
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


def _groups(boxes: dict[str, list[Stored]]) -> Iterator[list[str]]:
    """Names in files of at most FILE_BYTES, counted at four bytes an element."""
    group: list[str] = []
    size = 0
    for name in sorted(boxes):
        numel = sum(item.box.numel for item in boxes[name])
        if group and size + 4 * numel > FILE_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += 4 * numel
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
