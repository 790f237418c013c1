"""The progress line: redrawn on a terminal, now and then in a log."""

import io

from terminals import Terminal

from meshwright.runtime.metrics.progress import Progress


def test_a_terminal_shows_share_and_time_left(clock: list[float]) -> None:
    stream = Terminal()
    bar = Progress("tokenize", 200, first=100, stream=stream)
    clock[0] = 10.0
    bar.at(150, "3 shards")
    # 50 done in 10 s, 50 to go: what stood before the resume does not count as speed.
    assert " 75.0%  3 shards  10 s left" in stream.getvalue()
    assert stream.getvalue().startswith("\rtokenize [") and "\n" not in stream.getvalue()
    bar.clear()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_what_begins_is_said_before_any_of_it_is_done() -> None:
    for stream in (Terminal(), io.StringIO()):
        Progress("compile", 8, stream=stream).begin("8 functions")
        assert "compile 8 functions" in stream.getvalue()


def test_a_log_gets_whole_lines_seldom(clock: list[float]) -> None:
    stream = io.StringIO()
    bar = Progress("verify", 100, stream=stream)
    for second in range(25):
        clock[0] = float(second)
        bar.at(second)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2 and all(line.startswith("verify [") for line in lines)
