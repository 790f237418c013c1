"""What a shell offers behind words that were typed, by the shell itself."""

import shutil
import subprocess
from pathlib import Path

import pytest

from meshwright.cli import main

# Words typed, the last of them unfinished -> some that are offered, some that are not.
CASES = {
    "": ("plan clusters completion", "list --seq a.toml"),
    "pl": ("plan plot", "clusters"),
    "plan --pr": ("--prove-full", "--seq"),
    "plan --dtype ": ("f32 bf16", "--seq plan"),
    "plan --seq ": ("", "a.toml tiny"),
    "plan t": ("tiny two", "llama-7b a.toml"),
    "plan tiny --cluster h200": ("h200:", "cpu:"),
    "run --out two": ("two", "tiny"),
    "data ": ("tokenize verify", "plan"),
    "data tokenize --on-bad ": ("stop skip", "tokenize"),
    "train --out run a": ("a.toml", "plan"),
}
BASH = """
. "$1"
while IFS= read -r line; do
  COMP_WORDS=(meshwright $line) && case "$line" in ""|*" ") COMP_WORDS+=("") ;; esac
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) && COMPREPLY=() && _meshwright
  echo ${COMPREPLY[@]}
done
"""
FISH = """
source $argv[1]
while read -l line
    echo (complete -C "meshwright $line" | string replace -r '\\t.*' '')
end
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a file and a folder to offer."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").touch()
    (tmp_path / "two").mkdir()
    return tmp_path


@pytest.mark.parametrize(("shell", "asks"), [("bash", BASH), ("fish", FISH)])
def test_a_shell_offers_what_fits(
    shell: str, asks: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} on this machine")
    assert main(["completion", shell]) == 0
    (folder / "script").write_text(capsys.readouterr().out)
    words = [shell, "-c", asks, *(["bash"] if shell == "bash" else []), "./script"]
    typed = "".join(f"{line}\n" for line in CASES)
    done = subprocess.run(words, input=typed, capture_output=True, text=True, timeout=60)
    offered = [set(line.replace("/", "").split()) for line in done.stdout.splitlines()]
    assert done.stderr == "" and len(offered) == len(CASES)
    for (line, (fits, other)), words_offered in zip(CASES.items(), offered, strict=True):
        assert set(fits.split()) <= words_offered, line
        assert not set(other.split()) & words_offered, line
