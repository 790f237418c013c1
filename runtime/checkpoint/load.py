"""Fill a rank's shards from a checkpoint of any plan, or from Hugging Face weights."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ..engine.boxes import Box, Index
from ..engine.executor import Executor
from ..engine.layout import Layout
from ..optimizers.optimizer import Optimizer
from .manifest import CheckpointError, Files, Manifest, Stored
from .planning import plan_reads
from .tied import check_tied
from .weights import find_own_weight, has_weight, stored_weights

WEIGHTS = ("param", "training")  # the kinds that are not state

Target = tuple[Box, Tensor]  # a logical box, and the local tensor that holds it


def load(executor: Executor[Optimizer], manifest: Manifest) -> tuple[str, ...]:
    """Parameters and optimizer state from a checkpoint of any plan of the same model.

    Returns the names of parameters that were frozen there and are trained here: their optimizer
    state starts anew. State of parameters that are frozen here is not read. Those of `lacking` stay
    as they are.
    Its parameters are the layout's, which check_params tells. Raises CheckpointError where its
    boxes do not cover a tensor.
    """
    layout = executor.layout
    _check_numbers(manifest, executor.optimizer.rule.numbers)
    fresh, left = manifest.frozen - layout.frozen, lacking(layout, manifest.params)
    targets = {key: found for key, found in _targets(executor).items() if key[1] not in left}
    weights = [key for key in targets if key[0] in WEIGHTS]
    with Files(manifest.path) as files:
        for kind, param in weights:
            stored = manifest.boxes.get(("param" if param in fresh else kind, param), [])
            _fill(targets[kind, param], stored, files, param)
        if fresh:
            executor.optimizer.start_states()
        for kind, param in (key for key in targets if key not in weights):
            if param not in fresh:
                _fill(targets[kind, param], manifest.boxes.get((kind, param), []), files, param)
    executor.optimizer.resumed(manifest.state.updates, manifest.state.numbers)
    return tuple(sorted(fresh))


def check_covered(executor: Executor[Optimizer], manifest: Manifest) -> None:
    """Raise CheckpointError where a checkpoint lacks an element of what this rank holds; nothing is
    read but the manifest."""
    fresh = manifest.frozen - executor.layout.frozen
    fresh |= lacking(executor.layout, manifest.params)
    for (kind, param), targets in _targets(executor).items():
        if param in fresh:
            continue
        stored = [item.box for item in manifest.boxes.get((kind, param), [])]
        covered = [0] * len(targets)
        for read in plan_reads(param, stored, [box for box, _ in targets]):
            covered[read.local] += read.part.numel
        _check_filled(targets, covered, param)


def lacking(layout: Layout, there: Collection[str]) -> frozenset[str]:
    """Return the frozen parameters that are not `there` and begin as known numbers, as buffers of a
    class do: they are the same in every run, so that a checkpoint of an older version, or a folder
    of weights, may lack them."""
    known = {p.name for p in layout.params if p.init.startswith(("constant(", "stored("))}
    return frozenset(layout.frozen & known - set(there))


def _check_numbers(manifest: Manifest, known: dict[str, float]) -> None:
    found = manifest.state.numbers
    if found.keys() != known.keys() or any(type(n) is not float for n in found.values()):
        raise CheckpointError(
            f"{manifest.path}: its optimizer's numbers are {found}, expected {sorted(known)}; "
            "resume from the checkpoint before"
        )


def _targets(executor: Executor[Optimizer]) -> dict[tuple[str, str], list[Target]]:
    """By kind and parameter all that this rank holds."""
    found = defaultdict(list)
    for kind, param, box, target in _held(executor):
        found[kind, param].append((box, target))
    return found


def _held(executor: Executor[Optimizer]) -> Iterator[tuple[str, str, Box, Tensor]]:
    optimizer = executor.optimizer
    for bucket in executor.buckets.values():
        for run in optimizer.runs_of(bucket):
            flats = optimizer.loaded_into(run)
            for part in run.parts:
                for kind, flat in flats.items():
                    yield kind, part.param.name, part.piece.box, part.view(flat)
        states = optimizer.rule.whole_states(bucket) if bucket.trainable else {}
        for (kind, param), whole in states.items():
            yield kind, param, Box((0,) * whole.ndim, tuple(whole.shape)), whole


def check_params(manifest: Manifest, here: Mapping[str, Index]) -> None:
    """Raise CheckpointError where the parameters `here`, shapes by name, are not the checkpoint's;
    a larger tensor would fill a smaller one's box."""
    there = manifest.params
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            found, wanted = (_shape(x.get(name)) for x in (there, here))
            raise CheckpointError(
                f"{manifest.path} is of another model ({manifest.state.model}): parameter {name} "
                f"is {found} there and {wanted} here; take the model that wrote it"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


class Loaded(NamedTuple):
    """What a rank read of a folder of weights: how many parameters. kept: parameters that the
    folder lacks, as `lacking` says. unread: tensors there that are no parameter of the model."""

    params: int
    kept: list[str]
    unread: list[str]

    def text(self, folder: str) -> str:
        """Return it as a line for the user."""
        said = f"{self.params} parameters of this rank from {folder}"
        kept = f"{few(self.kept)} not there, as the model makes them" if self.kept else ""
        unread = f"not read, as the model has none of them: {few(self.unread)}"
        return "; ".join(part for part in (said, kept, unread if self.unread else "") if part)


def load_weights(executor: Executor[Optimizer], folder: Path) -> Loaded:
    """Read parameters from a folder of Hugging Face safetensors."""
    stored, layout = stored_weights(folder), executor.layout
    found, kept = found_weights(stored, layout)
    read = {item.key for items in found.values() for item in items}
    names = set()
    with Files(folder) as files:
        check_tied(chain.from_iterable(stored.values()), read, files)
        for run in executor.optimizer.all_runs():
            for part in (p for p in run.parts if p.param.name not in kept):
                own = part.param.name
                _fill([(part.piece.box, part.view(run.weights))], found[own], files, own)
                names.add(own)
    executor.optimizer.started_over()
    there = {item.key for items in stored.values() for item in items}
    return Loaded(len(names), sorted(kept), sorted(there - read))


def found_weights(
    stored: dict[str, list[Stored]], layout: Layout
) -> tuple[dict[str, list[Stored]], frozenset[str]]:
    """Return the stored boxes of each parameter, and the parameters without any.

    Raises CheckpointError where one is missing that may not be, or has another shape.
    """
    there = [p.name for p in layout.params if has_weight(stored, p.name)]
    kept = lacking(layout, there)
    wanted = (p for p in layout.params if p.name not in kept)
    return {p.name: find_own_weight(stored, p.name, p.shape) for p in wanted}, kept


def few(names: Sequence[str], most: int = 3) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _fill(targets: list[Target], stored: list[Stored], files: Files, name: str) -> None:
    """Copy what is stored of one tensor into the targets; every element exactly once."""
    covered = [0] * len(targets)
    for read in plan_reads(name, [s.box for s in stored], [box for box, _ in targets]):
        box, tensor = targets[read.local]
        tensor[read.part.slices_of(box)].copy_(files.read(stored[read.stored], read.part))
        covered[read.local] += read.part.numel
    _check_filled(targets, covered, name)


def _check_filled(targets: list[Target], covered: list[int], name: str) -> None:
    for (box, _), found in zip(targets, covered, strict=True):
        if found != box.numel:
            raise CheckpointError(
                f"the checkpoint holds {found} of the {box.numel} elements of {name} at "
                f"{list(box.offsets)}; it is damaged, resume from the one before"
            )
