"""Options and settings for every test."""

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from warm_ranks import Forks

from meshwright.api import plans
from meshwright.runtime.launch import ranks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden anew instead of comparing with it",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Traces make millions of objects that live: to look through them took 8% of all time.
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)
    # Several ranks share two cores; and one thread sums in one order.
    torch.set_num_threads(1)
    # Tests of CPU ranks see no GPU: commands would say that it is left idle.
    if "not gpu" in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


# Files that take a minute and more, begun first: the last file leaves a worker without work. The
# jobs of Slurm wait more than they compute, beside other tests.
_LONGEST = (
    "slurm/test_slurm.py",
    "equivalence/test_grammar.py",
    "ir/test_op_db.py",
    "equivalence/test_law.py",
    "cli/test_mistakes.py",
    "proofs/test_zoo.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; the Makefile tells xdist to keep the order."""
    first = {f"tests/{name}": place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: first.get(item.nodeid.partition("::")[0], len(first)))


@pytest.fixture(scope="session", autouse=True)
def kept_together(pytestconfig: pytest.Config) -> None:
    """Share captures and proofs between the processes of tests, and with later calls of them."""
    os.environ["XDG_CACHE_HOME"] = str(pytestconfig.rootpath / ".pytest_cache" / "home")


@pytest.fixture(scope="session", autouse=True)
def without_pages() -> Iterator[None]:
    """Write no page for a browser beside each plan: 5 MB, which only tests of the page read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "plotly_script", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def compiled_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what torch.compile writes out of the folder that other test processes write, and compile
    in the process that asks."""
    folder: Path = tmp_path_factory.mktemp("torchinductor")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    # A kernel or two a test: processes to compile them in would import torch first.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


@pytest.fixture(scope="session", autouse=True)
def warm_ranks() -> Iterator[None]:
    """Fork the ranks of programs that a test runs by a call."""
    forks = Forks()

    def start(
        folder: Path, words: list[str], environment: dict[str, str], out: int, errors: Path
    ) -> ranks.Rank:
        stderr = open(errors, "w+", encoding="utf-8", errors="replace")
        rank = forks.start(words, folder, environment, out, stderr)
        return ranks.Rank(int(environment["RANK"]), rank, stderr)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "start_rank", start)
        yield


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True when golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a stopped clock shows, as the one element of a list."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now
