"""Links of the pages: each leads to a file that is there, and to a heading that it has."""

import re
from pathlib import Path

import pytest
from house.rooms import ROOT, name_of

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks/README.md"])
_CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """The targets inside the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", page.read_text()))
    return [target for target in found if "://" not in target]


def anchors(page: Path) -> set[str]:
    """The headings as links name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)}: {link} is not there"
        assert not anchor or anchor in anchors(target), f"{name_of(page)}: no heading {link}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [page.name for page in PAGES if page.parent.name == "docs"]
    assert [name for name in pages if f": {name}\n" not in navigation] == []
