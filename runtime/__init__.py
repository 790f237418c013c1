"""The runtime: what an emitted program calls, and the training services around it.

The whole folder travels inside every emitted program and is imported there as `runtime`, so it
imports itself relatively and nothing beyond torch, numpy, safetensors and the standard library.

Emitted stages say `from runtime import collectives, kernels, mesh`; these names are a door to
`engine`. They load when asked for: a rank is watched before it imports torch.
"""

from importlib import import_module
from types import ModuleType

DOOR = ("collectives", "kernels", "mesh")


def __getattr__(name: str) -> ModuleType:
    if name in DOOR:
        return import_module(f".engine.{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
