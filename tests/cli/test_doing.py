"""What a command is doing, on stderr."""

import io
import threading

import pytest
from terminals import Terminal

from meshwright.commands import doing
from meshwright.commands.doing import Doing


def test_a_terminal_has_one_line_that_is_left_empty(clock: list[float]) -> None:
    stream = Terminal()
    with Doing(stream) as say:
        say("tracing " + 99 * "long")
    first, last = stream.getvalue().split("\r")[1:]
    assert first.startswith("[   0.0 s] tracing long") and len(first) < 90
    assert last == "\x1b[K" and "\n" not in stream.getvalue()


def test_a_log_has_a_line_now_and_then_and_one_at_the_end(clock: list[float]) -> None:
    stream = io.StringIO()
    with Doing(stream) as say:
        for number in range(100):
            clock[0] = number / 10
            say(f"candidate {number}")
        say("planned")
    lines = [line.split("] ")[1] for line in stream.getvalue().splitlines()]
    assert lines == ["candidate 25", "candidate 50", "candidate 75", "planned"]


def test_a_log_has_its_last_line_once(clock: list[float]) -> None:
    stream = io.StringIO()
    with Doing(stream) as say:
        clock[0] = 9.0
        say("planned")
    assert stream.getvalue().count("planned") == 1


def test_a_log_hears_again_of_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doing, "EVERY_IN_LOG_S", 0.01)
    again = threading.Event()

    class Log(io.StringIO):
        def write(self, text: str) -> int:
            if self.getvalue().count("tracing") == 2:
                again.set()
            return super().write(text)

    with Doing(Log()) as say:
        say("tracing")
        assert again.wait(60)
