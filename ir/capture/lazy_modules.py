"""Graph modules whose code is written when it is called: torch's own, wrapped here.

An export writes the code of its graph anew after each of its passes, and nothing calls it.
"""

from contextlib import AbstractContextManager

from torch.fx._lazy_graph_module import _use_lazy_graph_module


def lazy_modules() -> AbstractContextManager[None]:
    """Return a context in which torch makes graph modules without their code: of the 29 s that 94
    layers of experts take to trace, 1.3."""
    return _use_lazy_graph_module(True)
