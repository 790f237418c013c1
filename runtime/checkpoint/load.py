"""Fill a rank's shards from a checkpoint of any plan, or from Hugging Face weights."""

from pathlib import Path

from torch import Tensor

from ..boxes import Box
from ..executor import Executor
from ..layout import Layout
from .manifest import CheckpointError, Files, Manifest, Stored
from .shards import local_pieces, view


def load(executor: Executor, manifest: Manifest) -> None:
    """Parameters and optimizer state from a checkpoint of any plan of the same model.

    Raises CheckpointError where it is of another model, or its boxes do not cover a tensor.
    """
    layout = executor.layout
    _check_model(manifest, layout)
    with Files(manifest.path) as files:
        for bucket in executor.buckets.values():
            flats = executor.optimizer.tensors(bucket)
            for param, start, piece in local_pieces(bucket, layout):
                for kind, flat in flats.items():
                    stored = manifest.boxes.get((kind, param), [])
                    _fill(view(flat, start, piece), piece.box, stored, files, param)
    executor.optimizer.publish()
    executor.optimizer.set_updates(manifest.state.updates)


def _check_model(manifest: Manifest, layout: Layout) -> None:
    """The same parameters of the same shapes: a larger tensor would fill a smaller one's box."""
    here, there = {p.name: p.shape for p in layout.params}, manifest.params
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            found, wanted = (_shape(x.get(name)) for x in (there, here))
            raise CheckpointError(
                f"{manifest.path} is of another model ({manifest.state.model}): parameter {name} "
                f"is {found} there and {wanted} here; resume with the model that wrote it"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


def load_weights(executor: Executor, folder: Path) -> int:
    """Parameters from a folder of Hugging Face safetensors; moments stay. Returns how many."""
    from ..weights import find_weight, stored_weights

    stored = stored_weights(folder)
    layout, count = executor.layout, set()
    with Files(folder) as files:
        for bucket in executor.buckets.values():
            for param, start, piece in local_pieces(bucket, layout):
                item = find_weight(stored, param, layout.param(param).shape)
                flat = executor.optimizer.tensors(bucket)["param"]
                _fill(view(flat, start, piece), piece.box, [item], files, param)
                count.add(param)
    executor.optimizer.publish()
    return len(count)


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
            f"{list(box.offsets)}; it is damaged, resume from the one before"
        )
