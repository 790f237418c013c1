"""Python's cycle collector at work less often, while millions of objects are made that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# New objects between two collections of the youngest, 700 or 2,000 by default. Tracing llama-70b
# and its search take 11% less time with it (2 cores, 2026-11-21), and 20 MB more at the peak.
YOUNG = 200_000


@contextmanager
def rarely_collected() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(max(YOUNG, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
