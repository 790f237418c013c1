"""`meshwright models`: the classes that were checked, the presets, and one model's config."""

import argparse
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from .output import print_result
from .parsers import add_command

if TYPE_CHECKING:
    from meshwright.models import DecoderConfig
    from meshwright.models.classes import Checked


def add(commands: Any) -> None:
    """Add the command and its parts."""
    parser = add_command(
        commands,
        "models",
        _classes,
        "List the classes of transformers that were checked, the presets, or a model's config. "
        "Alone it lists the classes with each result, as its part `classes` does.",
    )
    parser.set_defaults(types=[], named="models.classes")
    parts = parser.add_subparsers(title="parts", metavar="PART")
    add_command(parts, "list", _list, "List the presets with their sizes.")
    show = add_command(parts, "show", _show, "Show the config of a preset, TOML file or hf:DIR.")
    show.add_argument("name", metavar="MODEL", help="as plan takes it")
    classes = add_command(
        parts,
        "classes",
        _classes,
        "List the classes of transformers that were trained beside PyTorch, with each result. "
        "Every other class is tried as it comes: it is proven or refused.",
    )
    classes.add_argument("types", nargs="*", metavar="MODEL_TYPE", help="as config.json says it")


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


def _classes(arguments: argparse.Namespace) -> None:
    from meshwright.models.classes import checked_classes

    found = checked_classes()
    rows = [found.of(name) for name in arguments.types] or found.checked
    counts = ", ".join(f"{count} {result}" for result, count in found.counts().items())
    head = (
        f"{found.kinds} of transformers {found.transformers}, tiny configs, "
        f"one device, dp=2, tp=2 and pp=2 in float64, torch {found.torch}, {found.dates}: {counts}"
    )
    width = max(len(row.model_type) for row in rows)
    lines = [f"{row.model_type.ljust(width)}  {_checked(row)}" for row in rows]
    data = {
        "transformers": found.transformers,
        "torch": found.torch,
        "date": found.dates,
        "installed": _installed(),
        "counts": found.counts(),
        "classes": [asdict(row) for row in rows],
    }
    print_result(arguments, data, "\n".join([head, *_other(found.transformers), "", *lines]))


def _checked(row: "Checked") -> str:
    if row.result != "equal":
        return f"{row.result}: {row.said}"
    cut = "" if row.cut is None else f", tp=2 cuts {row.cut:.0%} of the weights"
    return row.result + cut


def _other(checked: str) -> list[str]:
    """Say where another version is installed than was checked."""
    here = _installed()
    if here == checked:
        return []
    there = f"transformers {here} is installed" if here else "transformers is not installed"
    return [f"{there}: what a class computes may differ; each is proven when it is planned"]


def _installed() -> str:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return ""
