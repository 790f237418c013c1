"""What a command says when it refuses its input."""

import re

import pytest

from meshwright.cli import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command ends with."""
    capsys.readouterr()
    code = main(list(arguments))
    errors = capsys.readouterr().err
    assert code == 2, errors
    return one_line(errors)


def one_line(errors: str) -> str:
    """The error, behind what the command was doing when that took long."""
    lines = [line for line in errors.splitlines() if not re.match(r"\[ *\d+\.\d s\] ", line)]
    assert "Traceback" not in errors
    assert len(lines) == 1 and lines[0].startswith("error: "), errors
    return lines[0]
