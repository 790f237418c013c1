"""Fill a rank's shards from a checkpoint of any plan, or from Hugging Face weights."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from ..boxes import Box
from ..executor import Executor
from ..layout import Layout
from .manifest import CheckpointError, Files, Manifest, Stored


def load(executor: Executor, manifest: Manifest) -> None:
    """Parameters and optimizer state from a checkpoint of any plan of the same model.

    Raises CheckpointError where it is of another model, or its boxes do not cover a tensor.
    """
    layout = executor.layout
    _check_model(manifest, layout)
    _check_numbers(manifest, executor.optimizer.rule.numbers)
    with Files(manifest.path) as files:
        for kind, param, box, target in _targets(executor):
            _fill(target, box, manifest.boxes.get((kind, param), []), files, param)
    executor.optimizer.resumed(manifest.state.updates, manifest.state.numbers)


def _check_numbers(manifest: Manifest, known: dict[str, float]) -> None:
    found = manifest.state.numbers
    if found.keys() != known.keys() or any(type(n) is not float for n in found.values()):
        raise CheckpointError(
            f"{manifest.path}: its optimizer's numbers are {found}, expected {sorted(known)}; "
            "resume from the checkpoint before"
        )


def _targets(executor: Executor) -> Iterator[tuple[str, str, Box, Tensor]]:
    """(kind, parameter, logical box, where it goes) of all that this rank holds."""
    optimizer = executor.optimizer
    for bucket in executor.buckets.values():
        for run in optimizer.runs_of(bucket):
            flats = optimizer.loaded_into(run)
            for part in run.parts:
                for kind, flat in flats.items():
                    yield kind, part.param.name, part.piece.box, part.view(flat)
        for (kind, param), whole in optimizer.rule.whole_states(bucket).items():
            yield kind, param, Box((0,) * whole.ndim, tuple(whole.shape)), whole


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
    """Parameters from a folder of Hugging Face safetensors. Returns how many."""
    from ..weights import find_weight, stored_weights

    stored = stored_weights(folder)
    names = set()
    with Files(folder) as files:
        for run in executor.optimizer.all_runs():
            for part in run.parts:
                item = find_weight(stored, part.param.name, part.param.shape)
                _fill(part.view(run.weights), part.piece.box, [item], files, part.param.name)
                names.add(part.param.name)
    executor.optimizer.started_over()
    return len(names)


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
