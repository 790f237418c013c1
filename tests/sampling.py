"""Which cases `make test` runs; `make long` runs the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_long(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Return parameters of a test, those that are not kept marked long."""
    return [c if c in kept else pytest.param(c, marks=pytest.mark.long) for c in cases]
