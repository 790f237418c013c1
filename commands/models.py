"""`meshwright models`: the presets, and one model's config."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .output import print_result
from .parsers import add_command

if TYPE_CHECKING:
    from meshwright.models import DecoderConfig


def add(commands: Any) -> None:
    """Add the command and its parts."""
    parser = commands.add_parser(
        "models",
        help="list the presets, show a model's config",
        description="List the presets, or show a model's whole config, which a TOML file may "
        "change field by field.",
    )
    parts = parser.add_subparsers(title="parts", required=True, metavar="PART")
    add_command(parts, "list", _list, "List the presets with their sizes.")
    show = add_command(parts, "show", _show, "Show the config of a preset, TOML file or hf:DIR.")
    show.add_argument("name", metavar="MODEL", help="as plan takes it")


def _list(arguments: argparse.Namespace) -> None:
    from meshwright.models import PRESETS

    facts = {name: _facts(config) for name, config in PRESETS.items()}
    width = max(map(len, facts))
    text = "\n".join(
        f"{name.ljust(width)}  {_count(f['parameters']):>7}  {f['layers']:>3} layers of "
        f"{f['dim']:<5}  {f['heads']}/{f['kv_heads']} heads, vocabulary {f['vocab']:,}"
        for name, f in facts.items()
    )
    print_result(arguments, {"models": facts}, text)


def _facts(config: "DecoderConfig") -> dict[str, Any]:
    return {
        "parameters": config.num_parameters,
        "layers": config.layers,
        "dim": config.dim,
        "heads": config.heads,
        "kv_heads": config.kv_heads or config.heads,
        "vocab": config.vocab,
        "max_seq": config.max_seq,
    }


def _count(parameters: int) -> str:
    """A number of parameters in the words of the field: 6.7B, 124M, 830K."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if parameters >= size:
            return f"{parameters / size:.3g}{unit}"
    return f"{parameters / 1e3:.3g}K"


def _show(arguments: argparse.Namespace) -> None:
    from meshwright.models import load_model

    source = load_model(arguments.name)
    fields = asdict(source.config) if source.config else source.config_fields
    if not fields:
        raise ValueError(
            f"{arguments.name}: a model of your own code has no config to show; plan it, and "
            "explain the plan"
        )
    text = "\n".join(f"{key} = {value!r}" for key, value in fields.items())
    print_result(arguments, {"name": source.name, "config": fields}, text)
