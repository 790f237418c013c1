"""Settings for every test of this room."""

from collections.abc import Iterator

import pytest
from tracing import traced_once


@pytest.fixture(scope="module", autouse=True)
def trace_once() -> Iterator[None]:
    """Plans of these tests share what was traced."""
    with traced_once():
        yield
