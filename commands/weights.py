"""`meshwright export` and `meshwright import`: weights to and from Hugging Face folders."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import print_result
from .parsers import add_command

if TYPE_CHECKING:
    from meshwright.models import ModelSource


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
        "loads the result, for our own families as the stock class that computes the same.",
    )
    parser.add_argument(
        "checkpoint", help="a checkpoint's folder, e.g. run/checkpoints/step_00000100"
    )
    parser.add_argument("--model", required=True, help="the model it is of, as given to plan")
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


def export_checkpoint(checkpoint: Path, model: str, out: Path) -> list[str]:
    """Write a checkpoint as a Hugging Face folder; return the names of its files."""
    from meshwright.models import load_model
    from meshwright.models.stock import write_stock_config
    from meshwright.runtime.checkpoint.weights import export_weights

    source = load_model(model)
    files = export_weights(checkpoint, _targets(source), out)
    return [*files, *write_stock_config(source, out)]


def _run_export(arguments: argparse.Namespace) -> None:
    out = Path(arguments.output)
    _print_written(
        out, export_checkpoint(Path(arguments.checkpoint), arguments.model, out), arguments
    )


def _run_import(arguments: argparse.Namespace) -> None:
    from meshwright.models import load_model
    from meshwright.models.agreement import check_config
    from meshwright.models.stock import param_shapes
    from meshwright.runtime.checkpoint.weights import import_weights

    folder, out, source = (
        Path(arguments.folder),
        Path(arguments.output),
        load_model(arguments.model),
    )
    targets = _targets(source)
    check_config(source, folder)
    files = import_weights(folder, targets, param_shapes(source), out)
    _print_written(out, files, arguments)


def _targets(source: "ModelSource") -> list[tuple[str, tuple[str, ...], bool]]:
    from meshwright.models.stock import targets

    return [(t.name, t.parts, t.transposed) for t in targets(source)]


def _print_written(out: Path, files: list[str], arguments: argparse.Namespace) -> None:
    text = f"weights written to {out}/: {', '.join(files)}"
    print_result(arguments, {"folder": str(out), "files": files}, text)
