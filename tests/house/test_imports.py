"""The import law: one direction only, and each library where it belongs (docs/architecture.md)."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from house.rooms import ROOMS, ROOT, imports, name_of, room_files

import meshwright
from meshwright.api import EXPORTS

# room -> the other rooms it may import, and the libraries beside the standard library.
LAW: dict[str, tuple[set[str], set[str]]] = {
    "ir": (set(), {"sympy", "networkx"}),
    "planner": ({"ir"}, {"sympy", "networkx", "numpy"}),
    "codegen": ({"ir"}, set()),
    "runtime": (set(), {"torch", "numpy", "safetensors", "triton"}),
    "models": (set(), {"torch", "transformers"}),
    "proof": ({"ir", "codegen", "runtime"}, {"torch"}),
    "api": ({"ir", "planner", "codegen", "runtime", "models", "proof"}, {"torch"}),
    "commands": ({"ir", "planner", "codegen", "runtime", "models", "proof", "api"}, set()),
}
# Files that may import more, each for a reason of its own.
MORE = {
    r"ir/capture/\w+\.py": {"torch"},  # the way from torch into the graph
    r"planner/solver\.py": {"ortools"},  # the one adaptor
    r"runtime/data/tokenizer\.py": {"tokenizers"},  # optional: imported when a file is given
    r"runtime/metrics/plot\.py": {"matplotlib"},  # optional: imported when something is drawn
    r"runtime/metrics/trackers\.py": {"wandb"},  # optional: imported when it is asked for
    r"runtime/metrics/health\.py": {"pynvml"},  # optional: sampled where it is installed
    r"runtime/control/metrics\.py": {"prometheus_client"},  # optional: the text of /metrics
    r"runtime/data/hub\.py": {"datasets"},  # optional: imported for hf: and hf-stream:
}


def _allowed(path: Path) -> tuple[set[str], set[str]]:
    rooms, libraries = LAW[name_of(path).split("/")[0]]
    extra = (names for pattern, names in MORE.items() if re.fullmatch(pattern, name_of(path)))
    return rooms, libraries.union(*extra)


def _breaches(path: Path) -> list[str]:
    """What `path` imports against the law, one line each."""
    room = name_of(path).split("/")[0]
    rooms, libraries = _allowed(path)
    found = []
    for line, name in imports(path):
        top, *rest = name.split(".")
        if top == "meshwright":
            allowed = bool(rest) and rest[0] in {room, *rooms}
        else:
            allowed = top in libraries or top in sys.stdlib_module_names
        if not allowed:
            found.append(f"{name_of(path)}:{line} imports {name}")
    return found


# The folders of a room in the order of the data; each imports the earlier ones only. Files beside
# them (`planner/solver.py`) belong to no folder: all may import them.
FOLDERS = {
    "ir": ("ops", "text", "capture"),
    "planner": tuple(
        "hardware cost sharding pipeline simulate remat software bounds search report what_if "
        "page".split()
    ),
    "runtime": tuple(
        "metrics engine optimizers checkpoint data control training dry probe launch slurm".split()
    ),
}


def _folder_breaches(path: Path) -> list[str]:
    """Imports of `path` from a folder of its room that comes later, one line each."""
    room, *inner = name_of(path).split("/")
    order = FOLDERS.get(room, ())
    if not inner or inner[0] not in order:
        return []
    late = order[order.index(inner[0]) + 1 :]
    return [
        f"{name_of(path)}:{line} imports {name}"
        for line, name in imports(path)
        if name.startswith(f"meshwright.{room}.") and name.split(".")[2] in late
    ]


def test_each_folder_of_a_room_imports_only_earlier_ones() -> None:
    for room, order in FOLDERS.items():
        on_disk = {p.parent.name for p in (ROOT / room).glob("*/__init__.py")}
        assert on_disk == set(order), f"{room}/ holds {sorted(on_disk)}, the order {order}"
    breaches = [breach for path in room_files() for breach in _folder_breaches(path)]
    assert not breaches, "\n".join(breaches)


def test_each_room_imports_only_what_its_law_allows() -> None:
    inside = [path for path in room_files() if "/" in name_of(path)]
    assert inside, "no room on disk"
    breaches = [breach for path in inside for breach in _breaches(path)]
    assert not breaches, "\n".join(breaches)


def test_a_room_imports_itself_relatively() -> None:
    """`meshwright.ir` inside ir/ would break the copy of runtime/, and shows checkers two names."""
    found = []
    for path in room_files():
        room = name_of(path).split("/")[0]
        absolute = re.compile(rf"^\s*(from|import) meshwright\.{room}\b", re.MULTILINE)
        if room in ROOMS and absolute.search(path.read_text()):
            found.append(name_of(path))
    assert not found, f"absolute imports of the own room in {found}"


def test_runtime_leaves_its_folder_for_nothing() -> None:
    """The folder is copied into programs as top-level `runtime`: `..` would point at nothing."""
    outside = [
        f"{name_of(path)}:{line} imports {name}"
        for path in room_files()
        if name_of(path).startswith("runtime/")
        for line, name in imports(path)
        if name.split(".")[0] == "meshwright" and not name.startswith("meshwright.runtime.")
    ]
    assert not outside, "\n".join(outside)


def test_only_the_command_line_imports_commands() -> None:
    importers = {
        name_of(path)
        for path in room_files()
        for _, name in imports(path)
        if name.startswith("meshwright.commands") and not name_of(path).startswith("commands/")
    }
    assert importers == {"cli.py"}


@pytest.mark.parametrize("library", ["ortools", "transformers"])
def test_a_library_with_one_adaptor_stands_in_no_other_file(library: str) -> None:
    where = {
        name_of(path)
        for path in room_files()
        for _, name in imports(path)
        if name.split(".")[0] == library
    }
    allowed = {"ortools": r"planner/solver\.py", "transformers": r"models/.*\.py"}[library]
    assert all(re.fullmatch(allowed, name) for name in where), sorted(where)


def test_the_root_imports_no_room_and_offers_what_the_api_exports() -> None:
    """The root `__init__.py` runs before every room: its imports of rooms are for checkers alone,
    and say the same as those that run when a name is asked for."""
    root = ROOT / "__init__.py"
    shown = {name for _, name in imports(root) if name.startswith("meshwright.")}
    assert shown == {f"meshwright.{module}.{name}" for name, module in EXPORTS.items()}
    others = {name for _, name in imports(root)} - shown
    assert others == {"importlib.import_module", "typing.TYPE_CHECKING", "typing.Any"}
    said = "import sys, meshwright; sys.exit(len([m for m in sys.modules if 'meshwright.' in m]))"
    assert subprocess.run([sys.executable, "-c", said], timeout=60).returncode == 0
    assert all(getattr(meshwright, name) for name in EXPORTS) and set(EXPORTS) < set(
        dir(meshwright)
    )


# Where axes have names: the mesh's own definition, its copy for programs, and the pins.
NAMES_AXES = {"ir/mesh.py", "runtime/engine/mesh.py", "planner/search/pins.py"}
AXES = {"pp", "rep", "dp", "cp", "ep", "tp", "tq"}


def test_rooms_ask_for_roles_and_name_no_axis() -> None:
    found = [
        f"{name_of(path)}:{node.lineno} {node.value!r}"
        for path in room_files()
        if name_of(path) not in NAMES_AXES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in AXES
    ]
    assert not found, "ask ir/mesh for a role:\n" + "\n".join(found)
