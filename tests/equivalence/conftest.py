"""The court that all cases of a run share, and what it saw."""

from collections.abc import Iterator

import pytest
from equivalence.law import Court

_COURTS = pytest.StashKey[list[Court]]()


@pytest.fixture(scope="session")
def court(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Court]:
    made = Court(tmp_path_factory.mktemp("equivalence"))
    request.config.stash[_COURTS] = [made]
    yield made
    made.pool.stop()


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:  # type: ignore[no-untyped-def]
    for court in config.stash.get(_COURTS, []):
        terminalreporter.section("the law: worst error seen")
        for (dtype, kind), (error, where) in sorted(court.worst.items()):
            terminalreporter.line(f"{dtype} {kind:5} {error:.2e}  {where}")
