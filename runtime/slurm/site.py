"""Defaults of a site, from one TOML file:

partition = "gpu"             # also account, qos, constraint, gres, time
modules = ["cuda/13.0"]       # module load ...
venv = "/shared/venv"         # its bin/activate is sourced, and its python runs the ranks
prefix = "apptainer exec --nv /images/torch.sif"   # before the python of each node
setup = ["ulimit -l unlimited"]                    # further lines of shell
interface = "ib0"             # for NCCL and gloo
cache = "/scratch/compiled"   # what torch.compile writes, shared by ranks and restarts
scratch = "$TMPDIR"           # on each node's own disk: $MESHWRIGHT_SCRATCH of --fast-dir
gpus_per_node = 8
exclusive = true
"""

import difflib
import os
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .scheduler import SlurmError

# The variable by which a run's options name the site's scratch folder.
SCRATCH = "MESHWRIGHT_SCRATCH"


@dataclass(frozen=True)
class Site:
    """Defaults of a site; "" and () stand for nothing. The fields are the file's keys."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    gres: str = ""
    time: str = ""
    modules: tuple[str, ...] = ()
    venv: str = ""
    prefix: str = ""
    setup: tuple[str, ...] = ()
    interface: str = ""
    cache: str = ""
    scratch: str = ""
    gpus_per_node: int = 0
    exclusive: bool = True

    @property
    def python(self) -> str:
        """Return the interpreter of the virtual environment, "" without one."""
        return f"{self.venv}/bin/python" if self.venv else ""

    def lines(self, cache: Path) -> Iterator[str]:
        """Yield the lines of shell that come before the start. cache: where the site names none."""
        if self.modules:
            yield f"module load {shlex.join(self.modules)}"
        if self.venv:
            yield f"source {shlex.quote(f'{self.venv}/bin/activate')}"
        yield from self.setup
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if self.interface else ():
            yield f"export {name}={shlex.quote(self.interface)}"
        if self.scratch:
            yield f"export {SCRATCH}={shlex.quote(self.scratch)}"
        yield f"export TORCHINDUCTOR_CACHE_DIR={shlex.quote(self.cache or str(cache))}"


def default_path() -> Path:
    """Return the path of the user's own file."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "meshwright" / "site.toml"


def read_site(given: str = "") -> Site:
    """Return the site of a file that is given, else of the user's own, else one of no defaults.

    Raises SlurmError for a file that cannot be read, a key that is unknown, or a value of another
    type.
    """
    path = Path(given) if given else default_path()
    if not given and not path.is_file():
        return Site()
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SlurmError(f"--site {path}: {error.strerror}") from None
    except ValueError as error:
        raise SlurmError(f"{path}: not TOML: {error}") from None
    return Site(**{key: _value(path, key, value) for key, value in said.items()})


def _value(path: Path, key: str, value: Any) -> Any:
    known = {item.name: item.default for item in fields(Site)}
    if key not in known:
        near = difflib.get_close_matches(key, known, 1)
        hint = f"; did you mean {near[0]}" if near else ""
        raise SlurmError(f"{path}: unknown key {key!r}{hint}; keys: {', '.join(known)}")
    wanted = type(known[key])
    found = tuple(value) if isinstance(value, list) else value
    texts = not isinstance(found, tuple) or all(isinstance(item, str) for item in found)
    if type(found) is not wanted or not texts:
        name = {"tuple": "a list of strings", "str": "a string", "int": "a whole number"}
        raise SlurmError(
            f"{path}: {key} is {value!r}, expected {name.get(wanted.__name__, 'true or false')}"
        )
    return found
