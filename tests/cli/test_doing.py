"""What a command is doing, on stderr."""

import io
import time

import pytest

from meshwright.commands import doing
from meshwright.commands.doing import Doing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_left_empty() -> None:
    stream = Terminal()
    with Doing(stream) as say:
        say("tracing " + 99 * "long")
    first, last = stream.getvalue().split("\r")[1:]
    assert first.startswith("[   0.0 s] tracing long") and len(first) < 90
    assert last == "\x1b[K" and "\n" not in stream.getvalue()


def test_a_log_hears_of_what_takes_long_and_not_of_all_that_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doing, "EVERY_IN_LOG_S", 0.1)
    stream = io.StringIO()
    with Doing(stream) as say:
        for number in range(50):
            say(f"candidate {number}")
        time.sleep(0.35)
        say("planned")
    *again, last = stream.getvalue().splitlines()
    assert last.endswith("] planned")
    assert 2 <= len(again) <= 4 and all(line.endswith("] candidate 49") for line in again)
