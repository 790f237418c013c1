"""Paths with variables of a node: kept as they are given, read where the ranks are."""

from pathlib import Path

import pytest

from meshwright.runtime.launch.words import option_words
from meshwright.runtime.node_path import NodePathError, expanded
from meshwright.runtime.training.options import RunOptions
from meshwright.runtime.training.record import _placed


def test_variables_and_home_are_those_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("TMPDIR", "/local/7")
    monkeypatch.setenv("MESHWRIGHT_SCRATCH", "${TMPDIR}/fast")
    for text, path in (
        ("~/fast", "/home/ada/fast"),
        ("$TMPDIR", "/local/7"),
        ("${TMPDIR}/a b", "/local/7/a b"),
        ("$MESHWRIGHT_SCRATCH/x", "/local/7/fast/x"),
        ("here/fast", "here/fast"),
    ):
        assert expanded("--fast-dir", text) == Path(path), text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("$NOT_SET/fast", "NOT_SET is not set on"),
        ("/a/$", "\\$ is not set on"),
        ("$ODD", "is 'fast' on .*, not a path from / on"),
        ("$LOOP", "LOOP is not set on"),
    ],
)
def test_what_names_nothing_here_is_refused(
    text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("ODD", "fast")
    monkeypatch.setenv("LOOP", "$LOOP")
    with pytest.raises(NodePathError, match=said):
        expanded("--fast-dir", text)


def test_a_launcher_and_the_record_of_a_run_keep_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is that of the folder in which the command was given."""
    monkeypatch.chdir(tmp_path)
    for given, kept in (("$TMPDIR/a", "$TMPDIR/a"), ("~/a", "~/a"), ("a", str(tmp_path / "a"))):
        assert option_words({"fast_dir": given}) == ["--fast-dir", kept]
        options = RunOptions(fast_dir=given, fast_every=2, save_every=4)
        assert _placed(options)["fast_dir"] == kept
