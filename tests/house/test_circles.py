"""No circle of imports, between modules or sub-packages; imports inside functions count, too."""

from style import ROOT, measure, read_sources


def test_nothing_imports_in_a_circle() -> None:
    """A circle that only holds because one import waits in a function breaks with the next one."""
    sources = read_sources(ROOT)
    assert len(sources) > 100, f"found only {len(sources)} files"
    circles = [f"{kind}: {c}" for kind, cs in measure(sources).circles.items() for c in cs]
    assert not circles, "\n".join(circles)
