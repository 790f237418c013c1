"""Read a DecoderConfig from a TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from .config import DecoderConfig
from .errors import ModelError, nearest
from .presets import PRESETS

_HINTS = get_type_hints(DecoderConfig)
_REQUIRED = tuple(field.name for field in fields(DecoderConfig) if field.default is MISSING)


def read_config(path: Path) -> DecoderConfig:
    """The file's fields, over those of its `preset` if it names one.

    An optional field is unset by the string "none", as TOML has no null.

    Raises ModelError on an unreadable file, an unknown or missing key, or a value of a wrong kind.
    """
    table = _parse(path)
    values = _preset(path, table.pop("preset", None))
    for key, value in table.items():
        values[key] = _checked(path, key, value)
    _check_complete(path, values)
    try:
        return DecoderConfig(**values)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _check_complete(path: Path, values: dict[str, Any]) -> None:
    missing = [name for name in _REQUIRED if name not in values]
    if missing:
        raise ModelError(f'{path}: missing {", ".join(missing)}; give them or preset = "..."')


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not TOML: {error}") from None


def _preset(path: Path, name: object) -> dict[str, Any]:
    if name is None:
        return {}
    if not isinstance(name, str) or name not in PRESETS:
        raise ModelError(f"{path}: unknown preset {name!r}; {nearest(str(name), PRESETS)}")
    return asdict(PRESETS[name])


def _checked(path: Path, key: str, value: object) -> object:
    if key == "model":
        raise ModelError(f"{path} is a job's file, it names a model: meshwright train {path}")
    if key not in _HINTS:
        raise ModelError(f"{path}: unknown key {key!r}; {nearest(key, [*_HINTS, 'preset'])}")
    if key == "window_pattern":
        return _pattern(path, value)
    kinds = get_args(_HINTS[key]) or (_HINTS[key],)
    if value == "none" and type(None) in kinds:
        return None
    if type(value) in kinds:
        return value
    if float in kinds and type(value) is int:
        return float(value)
    raise ModelError(f"{path}: {key} = {value!r}: must be {kinds[0].__name__}")


def _pattern(path: Path, value: object) -> tuple[bool, ...]:
    if isinstance(value, list) and all(type(entry) is bool for entry in value):
        return tuple(value)
    raise ModelError(f"{path}: window_pattern = {value!r}: must be a list of true and false")
