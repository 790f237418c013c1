"""What torch suggests for a guard on sizes, where making the suggestion itself fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx.experimental.symbolic_shapes import DimConstraints


@contextmanager
def no_failing_suggestions() -> Iterator[None]:
    """Suggest nothing where torch's suggestion raises AssertionError.

    torch 2.11 to 2.13 writes them for an export that has no error, too. It makes a Dim of the
    range that a divisor of S needs; with a remainder of -S, as in `-S % 4`, that range is empty.
    """
    plain = DimConstraints.prettify_results

    def prettify_results(self: DimConstraints, *given: Any, **named: Any) -> str:
        try:
            return plain(self, *given, **named)
        except AssertionError:
            return ""

    DimConstraints.prettify_results = prettify_results  # type: ignore[method-assign]
    try:
        yield
    finally:
        DimConstraints.prettify_results = plain  # type: ignore[method-assign]
