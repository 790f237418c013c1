"""The identity of a model, and the model of a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

from .losses import loss_of
from .objects import spec_of

if TYPE_CHECKING:
    from meshwright.ir.plan import Plan as Decisions
    from meshwright.ir.traced import Traced
    from meshwright.models import ModelSource
    from meshwright.runtime.checkpoint import Manifest
    from meshwright.runtime.identity import Identity

_RESTORE = "restore one of them, or give the path of another checkpoint"


def identity_of(
    source: "ModelSource", traced: "Traced | None" = None, loss: object = ""
) -> "Identity":
    """Return what a model is; its graph is of `traced`, and not known without it. loss: its own."""
    from meshwright.ir.text.graph_text import computation_hash
    from meshwright.runtime.identity import Identity, ModelIdentity

    dtype = "" if traced is None else traced.dtype
    graph = "" if traced is None else computation_hash(traced.graph)
    model = ModelIdentity(source.kind, source.name, dtype, source.config_fields, graph)
    return Identity(model, loss=spec_of(loss))


def loss_name(plan: "Decisions") -> str:
    """Return the name of a plan's own loss, "" for the cross-entropy."""
    from meshwright.runtime.identity import Identity

    return Identity.from_text(plan.identity).loss if plan.identity else ""


def checkpoint_in(path: Path) -> tuple[Path, list[str]]:
    """Return the newest good checkpoint of a run's folder and why newer ones were passed over; a
    path of another kind as it is.

    Raises ValueError for a run that saved none, CheckpointError where all are damaged.
    """
    from meshwright.runtime.checkpoint import CheckpointError, newest_good, none_reads

    folder = path / "checkpoints"
    if not folder.is_dir():
        return path, []
    newest, complaints = newest_good(folder)
    if newest is None and complaints:
        raise CheckpointError(none_reads(folder, complaints, _RESTORE))
    if newest is None:
        raise ValueError(f"{path} is a run that saved no checkpoint; run it with --save-every")
    return newest.path, complaints


def model_of(manifest: "Manifest", model: str | None, accept_graph: bool = False) -> "ModelSource":
    """Return the model of a checkpoint, as it says itself; or `model`, a spec, compared with it.

    Raises ValueError where a field of the config, a parameter's name or shape, or (unless
    accept_graph) what the user's own code computes differs; and where nothing says the model.
    """
    from meshwright.runtime.checkpoint import check_params
    from meshwright.runtime.identity import check_code, check_model

    where, theirs = str(manifest.path), manifest.identity
    source = _source(manifest, model)
    way_out = "leave out --model, as the checkpoint says its model itself"
    check_model(where, theirs, identity_of(source), way_out)
    check_params(manifest, _shapes_read(manifest, source))
    if source.kind == "py" and not accept_graph:
        check_code(where, theirs, _captured(source, theirs, manifest.state.seq))
    return source


def unread(manifest: "Manifest", source: "ModelSource") -> list[str]:
    """Return the parameters of a module that its checkpoint lacks, as its forward reads none of
    them; our own decoders read all of theirs."""
    from meshwright.models.stock import param_shapes

    own = source.config is not None
    return [] if own else [n for n in param_shapes(source) if n not in manifest.params]


def _shapes_read(manifest: "Manifest", source: "ModelSource") -> dict[str, tuple[int, ...]]:
    from meshwright.models.stock import param_shapes

    left_out = set(unread(manifest, source))
    return {n: shape for n, shape in param_shapes(source).items() if n not in left_out}


def _source(manifest: "Manifest", model: str | None) -> "ModelSource":
    from meshwright.models import ModelError, load_model, rebuild_model

    known = manifest.identity.model
    if model is not None:
        return load_model(model)
    if known is None:
        raise _unknown_model(manifest)
    try:
        rebuilt = rebuild_model(known.kind, known.name, known.config)
    except ModelError as error:
        raise ModelError(
            f"{manifest.path}: {error}; give its --model, or put its code on PYTHONPATH"
        ) from None
    return _in_its_folder(rebuilt)


def _unknown_model(manifest: "Manifest") -> ValueError:
    return ValueError(
        f"{manifest.path} was written before checkpoints held their model; it was called "
        f"{manifest.state.model!r}: say which with --model"
    )


def _in_its_folder(rebuilt: "ModelSource") -> "ModelSource":
    """Return a Hugging Face model with its folder, whose tokenizer goes along, where that is still
    there and of this config."""
    from meshwright.models import load_model

    folder = Path(rebuilt.name.partition(":")[2])
    if rebuilt.kind != "hf" or not (folder / "config.json").is_file():
        return rebuilt
    there = load_model(rebuilt.name)
    return there if there.config_fields == rebuilt.config_fields else rebuilt


def _captured(source: "ModelSource", theirs: "Identity", seq: int) -> "Identity":
    """Return the identity of the user's own code, captured in the dtype that the checkpoint's was;
    nothing is captured where the checkpoint does not say it. seq: the length of its rows, for code
    that is captured for one alone."""
    from .capturing import captured
    from .demands import silent

    if theirs.model is None:
        return identity_of(source)
    own_loss = loss_of(theirs.loss, source.vocab_size)
    traced, _ = captured(source, theirs.model.dtype, "", own_loss, silent, seq)
    return identity_of(source, traced, theirs.loss)
