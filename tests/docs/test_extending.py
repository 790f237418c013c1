"""Each diff of docs/extending.md applies to this tree, and works in a copy that has them all."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from house.rooms import ROOMS, ROOT

USES = Path(__file__).with_name("additions.py")
PAGE = (ROOT / "docs" / "extending.md").read_text()
DIFFS = dict(re.findall(r"<!-- diff: (\w+) -->\n```diff\n(.*?)```", PAGE, re.DOTALL))


def _apply(diff: str, folder: Path, *options: str) -> None:
    """Change files below `folder`, which may be in a repository or in none."""
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    command = ["git", "apply", *options, "-"]
    done = subprocess.run(
        command, cwd=folder, env=env, input=diff, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with all additions, as a folder from which `meshwright` imports."""
    folder = tmp_path_factory.mktemp("extended")
    ignored = shutil.ignore_patterns("golden")  # what is compiled stays so, as times are copied
    for name in (*ROOMS, "tests"):
        shutil.copytree(ROOT / name, folder / "meshwright" / name, ignore=ignored)
    for name in ("__init__.py", "cli.py"):
        shutil.copy(ROOT / name, folder / "meshwright" / name)
    for diff in DIFFS.values():
        _apply(diff, folder / "meshwright")
    return folder


@pytest.fixture(scope="module")
def outcomes(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By addition "" or the traceback of what failed. PYTHONPATH precedes what is installed."""
    tests = copy / "meshwright" / "tests"
    path = os.pathsep.join([str(copy), str(tests)])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    folder = tmp_path_factory.mktemp("uses")
    command = [sys.executable, str(tests / "docs" / USES.name), str(folder)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", DIFFS)
def test_the_diff_applies_to_this_tree(name: str) -> None:
    _apply(DIFFS[name], ROOT, "--check")


@pytest.mark.parametrize("name", DIFFS)
def test_the_addition_works(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name] == "", outcomes[name]


def test_the_page_has_a_diff_of_every_addition(outcomes: dict[str, str]) -> None:
    assert list(DIFFS) == list(outcomes)
    assert PAGE.count("```diff") == len(DIFFS)
