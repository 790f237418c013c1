"""Meshwright: a compiler for training runs of transformers in PyTorch.

The API's names are imported when they are first asked for (`api/__init__.py` lists them).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.demands import Cluster as Cluster
    from .api.demands import Job as Job
    from .api.dry import dry_run as dry_run
    from .api.errors import RunFailedError as RunFailedError
    from .api.jobs import train as train
    from .api.modules import load_model as load_model
    from .api.planning import plan as plan
    from .api.planning import trace as trace
    from .api.plans import Plan as Plan
    from .api.probing import probe as probe
    from .api.programs import Program as Program
    from .api.programs import compile as compile
    from .api.results import EvaluationResult as EvaluationResult
    from .api.results import RunResult as RunResult
    from .api.runs import Trainer as Trainer
    from .api.runs import resume as resume
    from .api.runs import run as run
    from .api.what_if import priced as priced
    from .api.what_if import what_if as what_if
    from .ir.errors import MeshwrightError as MeshwrightError
    from .ir.traced import Traced as Traced
    from .models.router_load import RouterLoad as RouterLoad
    from .models.router_load import balance_loss as balance_loss
    from .models.source import ModelSource as ModelSource
    from .runtime.dry.found import DryRun as DryRun
    from .runtime.training.callbacks import Event as Event
    from .runtime.training.options import RunOptions as RunOptions

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    exports = import_module(".api", __name__).EXPORTS
    if name in exports:
        return getattr(import_module(f".{exports[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *import_module(".api", __name__).EXPORTS]
