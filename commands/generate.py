"""`meshwright generate`: samples of a checkpoint."""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import print_result
from .parsers import add_command
from .weights import export_checkpoint

if TYPE_CHECKING:
    from meshwright.models.generate import Sampling


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "generate",
        _run,
        "Print samples of a checkpoint or a Hugging Face folder. Runs on one device through "
        "transformers, with its KV cache.",
    )
    parser.add_argument("weights", help="a checkpoint's folder, or a Hugging Face folder")
    parser.add_argument("--model", help="of a checkpoint: the model it is of, as given to plan")
    parser.add_argument("--prompt", default="", help="text that the samples go on from")
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="a Hugging Face tokenizer's folder; bytes without one"
    )
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="(default: 128)")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="(default: 1)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest")
    parser.add_argument("--top-k", type=int, default=0, help="of the k likeliest, 0 for all")
    parser.add_argument("--top-p", type=float, default=1.0, help="of the likeliest with share p")
    parser.add_argument("--seed", type=int, default=0)


def _run(arguments: argparse.Namespace) -> None:
    from meshwright.models.generate import generate

    sampling, tokenizer = _sampling(arguments), arguments.tokenizer
    with tempfile.TemporaryDirectory() as exported:
        folder = _hugging_face_folder(arguments, Path(exported))
        texts = generate(folder, arguments.prompt, sampling, tokenizer)
    print_result(arguments, {"samples": texts}, "\n---\n".join(texts))


def _sampling(arguments: argparse.Namespace) -> "Sampling":
    from meshwright.models.generate import Sampling

    return Sampling(
        arguments.max_tokens,
        arguments.samples,
        arguments.temperature,
        arguments.top_k,
        arguments.top_p,
        arguments.seed,
    )


def _hugging_face_folder(arguments: argparse.Namespace, exported: Path) -> Path:
    """Return the folder given, or `exported` with the checkpoint given in it."""
    folder = Path(arguments.weights)
    if not (folder / "manifest.json").exists():
        return folder
    if arguments.model is None:
        raise ValueError(f"{folder} is a checkpoint: say of which model with --model")
    export_checkpoint(folder, arguments.model, exported)
    return exported
