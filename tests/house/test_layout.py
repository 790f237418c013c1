"""What stands where: the package list, the root, file sizes."""

import tomllib

from house.rooms import ROOMS, ROOT, house_files, name_of, packages_on_disk

LINES_AT_MOST = 500


def test_the_package_list_is_what_stands_on_disk() -> None:
    """setuptools leaves an unlisted subpackage out of the wheel, and fails on one that is gone."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(packages_on_disk())


def test_every_folder_of_code_in_a_room_is_a_package() -> None:
    """A folder without `__init__.py` imports in the checkout and is missing from the wheel."""
    bare = {
        name_of(path.parent)
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    }
    assert not bare, sorted(bare)


def test_the_root_holds_no_other_python_file() -> None:
    """Any other one, a conftest.py for instance, would be swept into the wheel."""
    assert {path.name for path in ROOT.glob("*.py")} <= {"__init__.py", "cli.py"}


def test_no_file_is_longer_than_the_limit() -> None:
    sizes = {name_of(path): len(path.read_text().splitlines()) for path in house_files()}
    assert len(sizes) > 5, f"found only {sorted(sizes)}"
    long = {name: lines for name, lines in sizes.items() if lines > LINES_AT_MOST}
    assert not long, f"past {LINES_AT_MOST} lines, split along its ideas: {long}"


def test_code_is_ascii() -> None:
    """Look-alike letters and quotes hide in diffs, and not every terminal prints them."""
    odd = [name_of(path) for path in house_files() if not path.read_text().isascii()]
    assert not odd, odd
