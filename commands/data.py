"""`meshwright data`: tokenize, describe and verify shards."""

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.runtime.given import check_folder_place, check_shards

from .output import print_result
from .parsers import add_command

if TYPE_CHECKING:
    from meshwright.runtime.data.tokenize import Settings


def add(commands: Any) -> None:
    """Add the command and those below it."""
    text = "Make, check and describe training data. What tokenize writes, run reads as shards:DIR."
    parser = commands.add_parser("data", help=text.split(". ")[0], description=text)
    below = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_tokenize(below)
    for name, run, says in (
        ("info", _run_info, "Say what a folder of shards holds, and what of it was checked."),
        ("verify", _run_verify, "Compare every shard with the size and SHA-256 in the manifest."),
    ):
        add_command(below, name, run, says).add_argument("folder", help="a folder of shards")


def _add_tokenize(commands: Any) -> None:
    parser = add_command(
        commands,
        "tokenize",
        _run_tokenize,
        "Tokenize documents into memory-mapped shards with a manifest. The result is the same, "
        "byte for byte, for any number of workers; a command that was killed goes on behind its "
        "last finished shard when it is given again.",
    )
    _add_inputs(parser)
    _add_tokens(parser)
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one a core)")
    parser.add_argument(
        "--on-bad",
        default="stop",
        choices=("stop", "skip"),
        help="what a document that cannot be read does; both name it (default: stop)",
    )


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a text file (one document), a jsonl file (a document a line), a folder of them, or "
        "hf:NAME_OR_PATH[:SPLIT], a Hugging Face dataset (needs the library datasets)",
    )
    parser.add_argument(
        "--format",
        default="auto",
        choices=("auto", "text", "jsonl"),
        help="of files; auto goes by the suffix: .jsonl, .ndjson, .json (default: auto)",
    )
    parser.add_argument(
        "--field", default="text", help="of a jsonl line or dataset row (default: text)"
    )


def _add_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="the shards' folder, empty at first"
    )
    parser.add_argument(
        "--tokenizer",
        default="bytes",
        metavar="T",
        help="bytes (a token a byte, NUL ends a document), a tokenizers JSON file, or a Hugging "
        "Face folder with a tokenizer.json (default: bytes)",
    )
    parser.add_argument(
        "--eos",
        default="",
        metavar="TOKEN",
        help="the token that ends a document, or none; a Hugging Face folder names its own",
    )
    parser.add_argument(
        "--shard-tokens",
        type=int,
        default=2**27,
        metavar="N",
        help="tokens of a shard; a killed command loses at most one (default: 134217728)",
    )
    parser.add_argument(
        "--held-out",
        default="",
        metavar="DIR",
        help="a folder of shards of the same tokenizer that evaluations of this data read",
    )


def _run_tokenize(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.output)
    check_folder_place("-o", folder)
    from meshwright.runtime.data.shards import describe
    from meshwright.runtime.data.tokenize import tokenize

    manifest = tokenize(
        arguments.inputs,
        folder,
        _settings(arguments),
        workers=os.cpu_count() or 1 if arguments.workers is None else arguments.workers,
        on_bad=arguments.on_bad,
        say=_say_on_stderr,
    )
    text = f"{describe(folder)}\ntrain on it with: --data shards:{folder}"
    print_result(arguments, {"folder": str(folder), **asdict(manifest)}, text)


def _settings(arguments: argparse.Namespace) -> "Settings":
    from meshwright.runtime.data.tokenize import Settings

    return Settings(
        tokenizer=arguments.tokenizer,
        end=arguments.eos,
        form=arguments.format,
        field=arguments.field,
        shard_tokens=arguments.shard_tokens,
        held_out=arguments.held_out,
    )


def _say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run_info(arguments: argparse.Namespace) -> None:
    check_shards(Path(arguments.folder))
    from meshwright.runtime.data.manifest import read_manifest
    from meshwright.runtime.data.shards import check_cheaply, describe

    folder = Path(arguments.folder)
    if not arguments.json:
        print(describe(folder))
        return
    manifest = read_manifest(folder)
    more = {"identity": manifest.identity, "hashes_checked": check_cheaply(folder, manifest)}
    print_result(arguments, {**asdict(manifest), **more}, "")


def _run_verify(arguments: argparse.Namespace) -> None:
    check_shards(Path(arguments.folder))
    from meshwright.runtime.data.shards import total_bytes, verify

    manifest = verify(Path(arguments.folder))
    count, size = len(manifest.shards), total_bytes(manifest)
    print_result(
        arguments,
        {"shards": count, "bytes": size, "identity": manifest.identity},
        f"{arguments.folder}: {count} shards, {size:,} bytes, as the manifest says",
    )
