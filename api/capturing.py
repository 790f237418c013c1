"""The capture of a model: made, or taken as it was kept from before."""

import re
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from meshwright.ir.errors import CaptureError, SizeError
from meshwright.models import ModelSource

from . import kept
from .demands import Say

if TYPE_CHECKING:
    from meshwright.ir.capture.own_loss import OwnLoss
    from meshwright.ir.traced import Traced

    Given: TypeAlias = tuple[ModelSource, str, str, OwnLoss | None]

_KIND = "captures"
# Tokens and ops of a capture of one length: a loop over tokens has its ops once a token.
LONGEST_FIXED, MOST_OPS = 1024, 20_000


def captured(
    source: ModelSource,
    dtype: str,
    freeze: str,
    own_loss: "OwnLoss | None",
    say: Say,
    seq: int | None = None,
) -> tuple["Traced", str]:
    """Return the capture of a model, and the key that it is kept under; "" where it is not kept.

    seq: the length of rows that the capture must take: a model that cannot be captured for every
    length is captured for multiples of some step, or for this one; None: such a model is refused.
    Raises CaptureError for a model that cannot be captured as it stands.
    """
    given = source, dtype, freeze, own_loss
    key = "" if own_loss else kept.capture_key(source, dtype, freeze)
    fixed = kept.hash_of(key, str(seq)) if key and seq else ""
    every = _known(key, say)
    if every and takes(every, seq):
        return _counted(every, say), key
    if one := _known(fixed, say):
        return _counted(one, say), fixed
    try:
        traced, key = _of_lengths(given, seq, every, (key, fixed), say)
    except SizeError as error:
        if seq is None:
            raise
        key, traced = fixed, _of_one_length(given, seq, error, say)
        _keep(key, traced, say)
    return _counted(traced, say), key


def _of_lengths(
    given: "Given", seq: int | None, every: "Traced | None", keys: tuple[str, str], say: Say
) -> tuple["Traced", str]:
    """Return a capture for some lengths, `seq` among them, and its key.

    every: that which is known, for others. keys: where nothing is known, and beside what is.
    Raises SizeError where there is none.
    """
    key = keys[every is not None]
    if every is None or (seq or 0) % every.lengths.step == 0:
        say(f"tracing {given[0].name}")
        traced = _trace(*given, seq)
        if every is None or takes(traced, seq):
            _keep(key, traced, say)
        every = traced
    return _taking(every, seq), key


def takes(traced: "Traced", seq: int | None) -> bool:
    """Return whether the forward of a captured model takes rows of `seq` tokens; None: of some."""
    return seq is None or traced.lengths.takes(seq)


def _taking(traced: "Traced", seq: int | None) -> "Traced":
    """Return a capture, if it takes rows of `seq` tokens; else raise SizeError."""
    if takes(traced, seq):
        return traced
    raise _RangeError(
        f"--seq {seq}: the forward of {traced.model} takes rows of {traced.lengths}; give one of "
        "these, or change what in it depends on the length"
    )


class _RangeError(SizeError):
    """A capture for every length takes rows of some lengths only."""


def _counted(traced: "Traced", say: Say) -> "Traced":
    say(f"{len(traced.segmented.instances)} segments, {len(traced.joints)} of them unique")
    return traced


def _of_one_length(given: "Given", seq: int, error: "SizeError", say: Say) -> "Traced":
    """Return a capture whose rows have `seq` tokens and no others.

    Raises the error that refused every length, where that one is too long, or is refused as well.
    """
    if seq > LONGEST_FIXED:
        raise SizeError(
            f"{error}; a plan for one length alone takes at most --seq {LONGEST_FIXED}, given {seq}"
        ) from error
    say(f"tracing {given[0].name} for rows of {seq} tokens alone")
    try:
        traced = _trace(*given, seq, alone=True)
    except CaptureError as refused:
        same = _without_sizes(refused) in _without_sizes(error)
        also = "" if same else f"; for {seq} tokens alone: {refused}"
        raise SizeError(f"{error}{also}") from None
    if (count := len(traced.graph.ops)) > MOST_OPS:
        raise SizeError(
            f"{error}; for {seq} tokens alone it has {count:,} ops, a plan takes {MOST_OPS:,}: "
            "give a smaller --seq"
        ) from error
    ranged = isinstance(error, _RangeError)
    why = "what is captured for every length leaves these out" if ranged else str(error)
    said = f"captured for rows of {seq} tokens alone: {why}"
    return replace(traced, warnings=(*traced.warnings, said))


def _without_sizes(error: CaptureError) -> str:
    return re.sub(r"\[\d+, \d+\]", "", str(error))


def _trace(
    source: ModelSource,
    dtype: str,
    freeze: str,
    own_loss: "OwnLoss | None",
    seq: int | None,
    alone: bool = False,
) -> "Traced":
    from meshwright.ir.capture import export
    from meshwright.ir.capture.freezing import parse_freeze

    rules, vocab = parse_freeze(freeze), source.vocab_size
    return export.trace(source.build, source.name, dtype, vocab, rules, own_loss, seq, alone)


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
