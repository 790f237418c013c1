"""The library transformers, which is no dependency: some commands alone need it."""

from __future__ import annotations

from typing import Any

from .errors import ModelError


def transformers_for(what: str) -> Any:
    """Return the module transformers. what: who needs it, for the message.

    Raises ModelError where it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ModelError(f"{what}: needs transformers; pip install 'meshwright[hf]'") from error
    return transformers
