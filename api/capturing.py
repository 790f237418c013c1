"""The capture of a model: made, or taken as it was kept from before."""

from typing import TYPE_CHECKING

from meshwright.models import ModelSource

from . import kept
from .demands import Say

if TYPE_CHECKING:
    from meshwright.ir.capture.own_loss import OwnLoss
    from meshwright.ir.traced import Traced

_KIND = "captures"


def captured(
    source: ModelSource,
    dtype: str,
    freeze: str,
    own_loss: "OwnLoss | None",
    say: Say,
) -> tuple["Traced", str]:
    """Return the capture of a model, and the key that it is kept under; "" where it is not kept.

    Raises CaptureError for a model that cannot be captured as it stands.
    """
    key = "" if own_loss else kept.capture_key(source, dtype, freeze)
    traced = _known(key, say)
    if traced is None:
        say(f"tracing {source.name}")
        traced = _trace(source, dtype, freeze, own_loss)
        _keep(key, traced, say)
    say(f"{len(traced.segmented.instances)} segments, {len(traced.joints)} of them unique")
    return traced, key


def _trace(source: ModelSource, dtype: str, freeze: str, own_loss: "OwnLoss | None") -> "Traced":
    from meshwright.ir.capture import export
    from meshwright.ir.capture.freezing import parse_freeze

    rules = parse_freeze(freeze)
    return export.trace(source.build, source.name, dtype, source.vocab_size, rules, own_loss)


def _known(key: str, say: Say) -> "Traced | None":
    """Return the capture that is kept under a key, None where there is none."""
    from meshwright.ir.errors import ParseError
    from meshwright.ir.traced_text import parse_traced

    try:
        traced = parse_traced(text) if (text := kept.known(_KIND, key)) else None
    except ParseError:
        return None
    if traced is not None:
        say(f"{traced.model} was traced before")
    return traced


def _keep(key: str, traced: "Traced", say: Say) -> None:
    """Keep a capture that its text says whole."""
    from meshwright.ir.traced_text import format_traced, parse_traced

    text = format_traced(traced) if key else ""
    if text and parse_traced(text) == traced and (why := kept.remember(_KIND, key, text)):
        say(why)
