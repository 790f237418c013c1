"""The numbers of `benchmarks/style.py`, on planted files."""

from pathlib import Path

from style import faults, measure, read_sources

FIRST = '''
from .second import g
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from ..runtime.third import h


def f() -> int:
    """Whether it is."""
    return g()
'''
SECOND = '''
def g() -> int:
    """Return one."""
    from .first import f

    return 1 if f else 0
'''


def _plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_lengths_circles_and_docstrings(tmp_path: Path) -> None:
    third = "def h() -> None:\n    pass\n"
    _plant(tmp_path, {"ir/first.py": FIRST, "ir/second.py": SECOND, "runtime/third.py": third})
    numbers = measure(read_sources(tmp_path))
    assert sorted(numbers.lengths.values()) == [2, 3, 5]
    assert (numbers.median, numbers.p90) == (3, 5)
    circle = [["meshwright.ir.first", "meshwright.ir.second"]]
    assert numbers.circles["modules, on import"] == []
    assert numbers.circles["modules, inside functions, too"] == circle
    assert numbers.docstrings == 2 and len(numbers.flagged) == 1


def test_a_circle_between_sub_packages_and_a_long_file_are_faults(tmp_path: Path) -> None:
    """The modules themselves are in no circle: a imports b, c imports d."""
    files = {
        "planner/one/a.py": "from ..two.b import x\n",
        "planner/two/b.py": "x = 1\n" * 501,
        "planner/two/c.py": "from meshwright.planner.one import d\n",
        "planner/one/d.py": "def f() -> None:\n    pass\n",
        "planner/one/__init__.py": "",
    }
    _plant(tmp_path, files)
    found = "\n".join(faults(measure(read_sources(tmp_path))))
    assert "planner/two/b.py: 501 lines > 500" in found
    assert "circle of sub-packages, on import: planner.one, planner.two" in found
    assert "circle of modules" not in found
