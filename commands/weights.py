"""`meshwright export` and `meshwright import`: weights to and from Hugging Face folders."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.files import write_text
from meshwright.api.identity import checkpoint_in, identity_of, model_of, unread
from meshwright.runtime.given import (
    check_checkpoint,
    check_folder_place,
    check_hugging_face,
    check_no_weights,
)

from .doing import Doing
from .output import print_result, tell_passed_over
from .parsers import add_command

if TYPE_CHECKING:
    from meshwright.models import ModelSource
    from meshwright.runtime.checkpoint import Manifest
    from meshwright.runtime.identity import Identity


def add(commands: Any) -> None:
    """Add both commands."""
    _add_export(commands)
    _add_import(commands)


def _add_export(commands: Any) -> None:
    parser = add_command(
        commands,
        "export",
        _run_export,
        "Write a checkpoint as a Hugging Face folder. Reads one tensor at a time; transformers "
        "loads the result, for our own families as the stock class that computes the same. Weights "
        "of a py: model keep their own names, for load_state_dict.",
    )
    parser.add_argument(
        "checkpoint", help="a checkpoint's folder, e.g. run/checkpoints/step_00000100"
    )
    parser.add_argument(
        "--model", help="the model it is of, as given to plan; without it the checkpoint says it"
    )
    parser.add_argument(
        "--accept-graph",
        action="store_true",
        help="of a py: model: take code that computes something else than it did when it trained",
    )
    parser.add_argument("-o", "--output", default="export", help="the folder to write")


def _add_import(commands: Any) -> None:
    parser = add_command(
        commands,
        "import",
        _run_import,
        "Take Hugging Face weights over to one of our own models, for run's --weights. For hf:DIR "
        "models --weights reads DIR itself. A config.json in the folder must be of the same model.",
    )
    parser.add_argument("folder", help="a folder of safetensors")
    parser.add_argument("--model", required=True, help="a preset or a TOML file of the same shape")
    parser.add_argument("-o", "--output", default="weights", help="the folder to write")


def export_checkpoint(manifest: "Manifest", source: "ModelSource", out: Path) -> list[str]:
    """Write a checkpoint of a model as a Hugging Face folder; return the names of its files.

    Parameters that the checkpoint lacks, as the model's forward does not read them, are left out.
    """
    from meshwright.models.stock import config_to_write, say_dtype, write_stock_config
    from meshwright.runtime.checkpoint.weights import export_weights, main_dtype

    config = config_to_write(source)  # first: it may be refused, and weights are large
    left_out = set(unread(manifest, source))
    targets = [target for target in _targets(source) if not left_out.intersection(target[1])]
    files = export_weights(manifest, targets, out)
    files += write_stock_config(source, config, out)
    if "config.json" in files:
        say_dtype(out / "config.json", main_dtype(out))
    # A stock class says in its config.json what it is.
    own = manifest.identity if source.kind == "py" else replace(manifest.identity, model=None)
    return [*files, *_write_identity(own, out)]


def _write_identity(identity: "Identity", out: Path) -> list[str]:
    """Write what is known of the weights in a folder; return the file's name."""
    from meshwright.runtime.identity import FILE, Identity

    if identity == Identity():
        return []
    write_text(out / FILE, f"{identity.text()}\n")
    return [FILE]


def _run_export(arguments: argparse.Namespace) -> None:
    out, given = Path(arguments.output), Path(arguments.checkpoint)
    check_checkpoint(given)
    _check_output(out)
    from meshwright.runtime.checkpoint import read_manifest

    with Doing() as say:
        say(f"reading {given}")
        checkpoint, complaints = checkpoint_in(given)
        manifest = read_manifest(checkpoint, shows=True)
        source = model_of(manifest, arguments.model, arguments.accept_graph)
        say(f"writing the weights of {source.name} to {out}")
        files = export_checkpoint(manifest, source, out)
    tell_passed_over(complaints)
    if left_out := unread(manifest, source):
        _say_left_out(out, left_out)
    step = manifest.state.step
    text = f"weights after {step} steps written to {out}/: {', '.join(files)}"
    print_result(arguments, {"folder": str(out), "files": files, "step": step}, text)


def _say_left_out(out: Path, left_out: list[str]) -> None:
    print(
        f"{out} is without {len(left_out)} parameters that the forward does not read, such as "
        f"{left_out[0]}: load it with strict=False",
        file=sys.stderr,
    )


def _run_import(arguments: argparse.Namespace) -> None:
    from meshwright.models import load_model

    folder, out = Path(arguments.folder), Path(arguments.output)
    source = load_model(arguments.model)
    check_hugging_face(folder)
    _check_output(out)
    from meshwright.models.agreement import check_config
    from meshwright.models.stock import param_shapes
    from meshwright.runtime.checkpoint.weights import import_weights
    from meshwright.runtime.identity import read_identity

    targets = _targets(source)
    check_config(source, folder)
    files = import_weights(folder, targets, param_shapes(source), out)
    files += _write_identity(replace(read_identity(folder), model=identity_of(source).model), out)
    text = f"weights written to {out}/: {', '.join(files)}"
    print_result(arguments, {"folder": str(out), "files": files}, text)


def _check_output(out: Path) -> None:
    check_folder_place("-o", out)
    check_no_weights(out)


def _targets(source: "ModelSource") -> list[tuple[str, tuple[str, ...], bool]]:
    from meshwright.models.stock import targets

    return [(t.name, t.parts, t.transposed) for t in targets(source)]
