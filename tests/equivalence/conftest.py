"""The pool of ranks and the court that all cases of a run share, and what it saw."""

from collections.abc import Iterator

import pytest
from equivalence.law import Court
from equivalence.pool import Pool

_COURTS = pytest.StashKey[list[Court]]()
_SEEN = pytest.StashKey[list[tuple[str, str, float, str]]]()


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def court(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pool: Pool
) -> Court:
    made = Court(tmp_path_factory.mktemp("equivalence"), pool)
    request.config.stash[_COURTS] = [made]
    return made


def _rows(config: pytest.Config) -> list[tuple[str, str, float, str]]:
    """(dtype, kind, error, where) of the worst errors that a process saw."""
    courts = config.stash.get(_COURTS, [])
    return [(*key, *found) for court in courts for key, found in court.worst.items()]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send what a worker saw to the process that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["law"] = _rows(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:  # type: ignore[no-untyped-def]
    node.config.stash.setdefault(_SEEN, []).extend(getattr(node, "workeroutput", {}).get("law", []))


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:  # type: ignore[no-untyped-def]
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for dtype, kind, error, where in [*_rows(config), *config.stash.get(_SEEN, [])]:
        worst[dtype, kind] = max(worst.get((dtype, kind), (0.0, "")), (error, where))
    if worst:
        terminalreporter.section("the law: worst error seen")
    for (dtype, kind), (error, where) in sorted(worst.items()):
        terminalreporter.line(f"{dtype} {kind:5} {error:.2e}  {where}")
