"""Load an emitted program's folder and build its executor."""

import base64
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from ..engine import mesh
from ..engine.buckets import FlatBucket
from ..engine.executor import Executor
from ..engine.layout import Layout
from ..engine.stage import Stage
from ..optimizers.optimizer import Optimizer
from ..optimizers.options import OptimizerOptions
from ..own_code import look_where_told


class ProgramError(ValueError):
    """A folder that is no program of this version."""


def load_module(path: Path) -> ModuleType:
    """Import one emitted file under a name of its own."""
    if not path.is_file():
        raise ProgramError(f"{path} is missing: {path.parent} is no program; run compile again")
    spec = importlib.util.spec_from_file_location(f"program_{path.stem}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    look_where_told()  # for modules that register custom ops
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise ProgramError(
            f"{path.name} imports {error.name}, which is not found; "
            "install it, or put its folder on PYTHONPATH"
        ) from error
    return module


def load_layout(folder: Path) -> Layout:
    return load_module(folder / "layout.py").LAYOUT


def load_constants(folder: Path, device: torch.device) -> dict[str, Tensor]:
    """Constants of the graph by hash."""
    rows = json.loads((folder / "constants.json").read_text())
    return {digest: decode(*row).to(device) for digest, row in rows.items()}


def decode(dtype: str, shape: Sequence[int], data: str) -> Tensor:
    """Return a constant. dtype: as torch calls it. data: its bytes in base64."""
    raw = bytearray(base64.b64decode(data))
    kind = getattr(torch, dtype)
    flat = torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)
    return flat.reshape(shape)


def build_executor(
    folder: Path,
    layout: Layout,
    options: OptimizerOptions,
    *,
    seed: int,
    compiler: Callable[[Callable], Callable] | None = None,
) -> Executor[Optimizer]:
    """Build the executor of this rank's stages; the mesh must be started."""
    rank = mesh.index(*mesh.PIPELINE)
    modules = _stage_modules(folder, layout, rank)
    constants = load_constants(folder, mesh.device())
    buckets = _buckets(modules, layout, seed, constants)
    stages = {s: Stage(module, buckets, constants, compiler) for s, module in modules.items()}
    optimizer = Optimizer(list(buckets.values()), layout, options)
    schedule = load_module(folder / "schedule.py").SCHEDULES[rank]
    return Executor(stages, schedule, layout, buckets, optimizer)


def _stage_modules(folder: Path, layout: Layout, rank: int) -> dict[int, ModuleType]:
    here = [stage for stage, home in enumerate(layout.stage_ranks) if home == rank]
    return {stage: load_module(folder / f"stage_{stage:02d}.py") for stage in here}


def _buckets(
    modules: dict[int, ModuleType], layout: Layout, seed: int, constants: dict[str, Tensor]
) -> dict[str, FlatBucket]:
    """Return the buckets that the stages use, with initial weights."""
    names = {n for module in modules.values() for i in module.INSTANCES for n in i.buckets}
    return {
        b.name: FlatBucket(b, layout, seed, mesh.device(), constants)
        for b in layout.buckets
        if b.name in names
    }
