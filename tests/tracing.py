"""Models that commands trace, traced once a session: it takes most of the time of a small plan.

Tests of commands ask what a command does with a plan. That tracing gives the same bytes each time
is held in tests/ir and tests/roundtrip, which trace anew.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import pytest
from torch import nn

from meshwright.ir.capture import export as capture
from meshwright.ir.capture.own_loss import OwnLoss
from meshwright.ir.traced import Traced
from meshwright.models.config import DecoderConfig
from meshwright.models.load import build_decoder

_trace = capture.trace


@cache
def _decoder(
    config: DecoderConfig, name: str, dtype: str, vocab_size: int, freeze: tuple[str, ...]
) -> Traced:
    return _trace(partial(build_decoder, config), name, dtype, vocab_size, freeze)


def _trace_once(
    build: Callable[[], nn.Module],
    name: str,
    dtype: str,
    vocab_size: int,
    freeze: tuple[str, ...] = (),
    loss: OwnLoss | None = None,
) -> Traced:
    """Our own decoders are told by their configs; what builds another says nothing of it."""
    if isinstance(build, partial) and build.func is build_decoder and loss is None:
        return _decoder(*build.args, name, dtype, vocab_size, freeze)
    return _trace(build, name, dtype, vocab_size, freeze, loss)


@contextmanager
def traced_once() -> Iterator[None]:
    """Commands that run in this process trace no model of ours twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "trace", _trace_once)
        yield
