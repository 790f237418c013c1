"""`meshwright generate`: samples of a checkpoint."""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.identity import checkpoint_in, model_of
from meshwright.runtime.given import check_checkpoint

from .output import print_result, tell_passed_over
from .parsers import add_command
from .weights import export_checkpoint

if TYPE_CHECKING:
    from meshwright.models.generate import Sampling
    from meshwright.runtime.identity import Identity, TokenizerIdentity


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
    parser.add_argument(
        "--model",
        help="of a checkpoint: the model it is of, as given to plan; without it the checkpoint "
        "says it",
    )
    parser.add_argument("--prompt", default="", help="text that the samples go on from")
    parser.add_argument(
        "--tokenizer",
        metavar="T",
        help="bytes, a tokenizers JSON file or a Hugging Face folder; without it that of the data "
        "that the weights were trained on, or the folder's own",
    )
    parser.add_argument(
        "--accept-tokenizer",
        action="store_true",
        help="take a --tokenizer that is not that of the data",
    )
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="(default: 128)")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="(default: 1)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest")
    parser.add_argument("--top-k", type=int, default=0, help="of the k likeliest, 0 for all")
    parser.add_argument("--top-p", type=float, default=1.0, help="of the likeliest with share p")
    parser.add_argument("--seed", type=int, default=0)


def _run(arguments: argparse.Namespace) -> None:
    weights = Path(arguments.weights)
    if not (weights / "config.json").is_file():
        check_checkpoint(weights)
    from meshwright.models.generate import generate

    sampling = _sampling(arguments)
    with tempfile.TemporaryDirectory() as exported:
        folder, identity = _weights(arguments, Path(exported))
        tokenizer = _tokenizer(arguments, folder, identity)
        texts = generate(folder, arguments.prompt, sampling, tokenizer, arguments.weights)
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


def _weights(arguments: argparse.Namespace, exported: Path) -> tuple[Path, "Identity"]:
    """Return a Hugging Face folder, the given one or `exported` with the given checkpoint in it,
    and what is known of its weights."""
    from meshwright.runtime.checkpoint import read_manifest
    from meshwright.runtime.identity import read_identity

    folder, complaints = checkpoint_in(Path(arguments.weights))
    tell_passed_over(complaints)
    if not (folder / "manifest.json").exists():
        return folder, read_identity(folder)
    manifest = read_manifest(folder)
    source = model_of(manifest, arguments.model)
    if source.kind == "py":
        raise _not_sampled(folder, source.name)
    export_checkpoint(manifest, source, exported)
    if complaints:
        print(f"samples are of {folder}, after {manifest.state.step} steps", file=sys.stderr)
    return exported, manifest.identity


def _not_sampled(folder: Path, model: str) -> ValueError:
    return ValueError(
        f"{folder} is of {model}, which is no class of transformers to sample from; "
        "meshwright export writes its weights for code of your own"
    )


def _tokenizer(arguments: argparse.Namespace, folder: Path, identity: "Identity") -> str | None:
    """Return the tokenizer to sample with: the given one, else that of the training data, else the
    folder's own; None where nothing names one.

    Raises ValueError where tokens of the given one are not those of the training data, unless
    --accept-tokenizer takes it, and where that of the data is no longer there.
    """
    where, known, given = arguments.weights, identity.tokenizer, arguments.tokenizer
    if known is None or (given and arguments.accept_tokenizer):
        return given or _in_folder(folder)
    spec = given or _of_data(where, known)
    _check_tokenizer(where, identity, spec)
    return spec


def _check_tokenizer(where: str, identity: "Identity", spec: str) -> None:
    from meshwright.runtime.data.tokenizer import tokenizer_identity
    from meshwright.runtime.identity import check_tokenizer

    own = replace(identity, tokenizer=tokenizer_identity(spec))
    check_tokenizer(where, identity, own, "give that one, or take this one by --accept-tokenizer")


def _in_folder(folder: Path) -> str | None:
    return str(folder) if (folder / "tokenizer.json").is_file() else None


def _of_data(where: str, known: "TokenizerIdentity") -> str:
    """Return where the tokenizer of the training data lies. Raises ValueError where it does not."""
    if known.kind == "bytes":
        return "bytes"
    if not (known.path and Path(known.path).exists()):
        raise ValueError(
            f"{where} was trained on tokens of {known}, which is no longer at "
            f"{known.path or 'a place that the data name'}; give its --tokenizer"
        )
    return known.path
