"""What a run prints: in colour on a terminal, plain in its file and elsewhere."""

import io
from pathlib import Path

import pytest
from terminals import Terminal

from meshwright.runtime.metrics.colour import painted
from meshwright.runtime.metrics.printed import FILE, Printed


@pytest.fixture(autouse=True)
def coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_has_colour_and_the_file_has_none(tmp_path: Path) -> None:
    terminal = Terminal()
    say = Printed(terminal)
    say("before the folder is known")
    say.open(tmp_path)
    say.warn("no compiler")
    assert terminal.getvalue() == "before the folder is known\n\x1b[33mno compiler\x1b[0m\n"
    assert (tmp_path / FILE).read_text() == "before the folder is known\nno compiler\n"


@pytest.mark.parametrize("name", ["NO_COLOR", "TERM"])
def test_users_turn_colour_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert painted("text", "error", Terminal()) == "\x1b[31mtext\x1b[0m"
    assert painted("text", "error", io.StringIO()) == "text"
    monkeypatch.setenv(name, "dumb")
    assert painted("text", "error", Terminal()) == "text"
