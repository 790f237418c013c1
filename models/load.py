"""From what a user writes to a model that can be built."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import DecoderConfig
from .errors import ModelError, nearest
from .presets import PRESETS
from .source import ModelSource
from .toml_file import read_config

if TYPE_CHECKING:
    from .decoder import Decoder


def load_model(spec: str) -> ModelSource:
    """The model that a spec names.

    spec: a preset (`llama-7b`); a `.toml` file of DecoderConfig's fields, optionally over
    `preset = "..."`; `hf:DIR`, a folder with a Hugging Face config.json; `hf-images:DIR`, the same
    of a model that reads an image in each row; or `py:module:factory`, a function without arguments
    that returns the module.

    Raises ModelError where the spec names no model, or one that cannot be trained as it stands.
    """
    kind, _, rest = spec.partition(":")
    if kind in ("hf", "hf-images"):
        from .huggingface import hugging_face_source

        return hugging_face_source(spec, Path(rest))
    if spec.startswith("py:"):
        from .factory import factory_source

        return factory_source(spec)
    if spec.endswith(".toml"):
        return _decoder_source(Path(spec).stem, read_config(Path(spec)))
    if spec in PRESETS:
        return _decoder_source(spec, PRESETS[spec])
    raise ModelError(
        f"unknown model {spec!r}; {_meant(Path(spec))}; "
        "or give a .toml file, hf:DIR, hf-images:DIR or py:module:factory"
    )


def _meant(path: Path) -> str:
    """A hint at what was meant by the name of no preset: what lies there, else the nearest one."""
    name = str(path)
    if (path / "config.json").is_file():
        return f"write hf:{name}"
    if path.suffix == ".py":
        return f"write py:{name.removesuffix('.py').replace('/', '.')}:factory"
    if name.count(":") == 1 and all(name.split(":")):
        return f"did you mean py:{name}"
    if path.exists():
        return f"{name} is a {'folder' if path.is_dir() else 'file'} of another kind"
    return nearest(name, PRESETS)


def rebuild_model(kind: str, name: str, fields: dict[str, Any]) -> ModelSource:
    """The model of what ModelSource.kind, name and config_fields said once.

    A model of the user's own code is loaded by its name. Raises ModelError where a field is none of
    this version, or the code cannot be imported.
    """
    if kind == "hf":
        from .huggingface import config_of_fields, stock_source

        return stock_source(name, config_of_fields(name, fields))
    if kind == "py":
        return load_model(name)
    try:
        pattern = tuple(fields["window_pattern"])
        return _decoder_source(name, DecoderConfig(**{**fields, "window_pattern": pattern}))
    except (KeyError, TypeError) as error:
        raise ModelError(f"{name}: no config of this version: {error}") from None


def _decoder_source(name: str, config: DecoderConfig) -> ModelSource:
    return ModelSource(name, config.vocab, config.max_seq, partial(build_decoder, config), config)


def build_decoder(config: DecoderConfig) -> Decoder:
    """Build the decoder of a config, for which torch is imported."""
    from .decoder import Decoder

    return Decoder(config)
