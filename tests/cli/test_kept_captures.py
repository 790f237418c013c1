"""A capture is kept on disk, and taken from there where all that it was made from is the same."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from families import OURS, traced

from meshwright import load_model, trace
from meshwright.api import kept
from meshwright.api.capturing import captured
from meshwright.ir.capture import export
from meshwright.ir.errors import SizeError
from meshwright.ir.traced_text import format_traced, parse_traced

UNTRACED = """
import sys, meshwright
meshwright.trace("tiny")
assert "torch" not in sys.modules, "a kept capture imports torch"
"""

BOUND: dict[str, bool] = {}  # models that cannot be traced for every length


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that are traced, with an empty folder of what is kept."""
    whole = traced("tiny-llama")  # before it is counted, and kept elsewhere
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found: list[str] = []

    def counting(build, name, dtype, vocab_size, freeze, loss, seq, alone):
        found.append(name)
        if name in BOUND and not alone:
            raise SizeError(f"model {name} binds S")
        return replace(whole, dtype=dtype, warnings=freeze)

    monkeypatch.setattr(export, "trace", counting)
    return found


@pytest.mark.parametrize("name", OURS)
def test_its_text_says_a_capture_whole(name: str) -> None:
    text = format_traced(traced(name))
    assert parse_traced(text) == traced(name) and format_traced(parse_traced(text)) == text


def test_a_model_of_one_length_is_traced_once_for_each_length(
    traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOUND, "tiny", True)
    given = load_model("tiny"), "f32", "", None, lambda _: None
    (first, key), again, (other, third) = (captured(*given, seq) for seq in (8, 8, 12))
    assert again == (first, key) and key != third
    assert "for rows of 8 tokens alone: model tiny binds S" in first.warnings[-1]
    assert "for rows of 12 tokens alone: model tiny binds S" in other.warnings[-1]
    assert len(traces) == 4  # each length once, behind the refusal of all


def test_a_model_is_traced_once_for_each_thing_that_decides(traces: list[str]) -> None:
    first = trace("tiny")
    assert trace("tiny") == first and len(traces) == 1
    assert trace("tiny", dtype="bf16") != first and len(traces) == 2
    assert trace("tiny", freeze="embed.*") != first and len(traces) == 3
    assert trace("tiny") == first and len(traces) == 3


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-9], lambda text: text.replace("S", "B"), lambda _: "v0\n"]
)
def test_a_damaged_capture_is_made_anew(damage, traces: list[str], tmp_path: Path) -> None:
    first = trace("tiny")
    (path,) = (tmp_path / "meshwright" / "captures").iterdir()
    good = path.read_text()
    path.write_text(damage(good))
    assert trace("tiny") == first and len(traces) == 2
    assert path.read_text() == good


def test_where_nothing_can_be_kept_that_is_said(
    traces: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said: list[str] = []
    trace("tiny", say=said.append)
    assert said[1].endswith("(Not a directory): nothing is kept for the next plan")


def test_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept, "_MOST", 2)
    for number, name in enumerate("abc"):
        kept.remember("texts", name, name)
        path = tmp_path / "meshwright" / "texts" / name
        kept.os.utime(path, (number, number))
        kept.known("texts", "a")  # was read last
    assert [kept.known("texts", name) for name in "abc"] == ["a", "", "c"]


def test_a_kept_capture_needs_no_torch() -> None:
    trace("tiny")
    done = subprocess.run([sys.executable, "-c", UNTRACED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_code_that_no_file_holds_has_no_key() -> None:
    assert kept.capture_key(load_model("tiny"), "f32", "")
    source = load_model("tiny")
    unknown = type(source)("py:m:f", source.vocab_size, None, source.build)
    assert kept.capture_key(unknown, "f32", "") == ""
