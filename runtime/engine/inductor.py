"""torch.compile, with a fault of its CPU backend corrected.

SchedulerNode.recompute_size_and_body of torch 2.11 to 2.13 (torch/_inductor/scheduler.py) makes a
node's dependencies anew without the names that mutated buffers have by then. When the CPU backend
so fits one loop to another to fuse the two, a value read after a collective, or after any op that
writes in place, may be read before it. tests/runtime/test_compiling.py shows it.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch

# Changed with the correction: part of the key that torch keeps compiled code under.
_CORRECTION = "meshwright: names of mutated buffers, 1"


def compile_whole(function: Callable) -> Callable:
    """Return the function, compiled without a graph break when it is first called, for the shapes
    of that call."""
    return torch.compile(
        function,
        fullgraph=True,
        dynamic=False,
        options={"post_grad_custom_pre_pass": _corrected()},
    )


@cache
def _corrected() -> Any:
    """Correct the scheduler of this process; return a pass whose name tells compiled code apart."""
    from torch._inductor.custom_graph_pass import CustomGraphPass
    from torch._inductor.scheduler import SchedulerNode

    made_anew = SchedulerNode.recompute_size_and_body

    @wraps(made_anew)
    def renamed(self: SchedulerNode, *arguments: Any, **words: Any) -> None:
        made_anew(self, *arguments, **words)
        self.set_read_writes(self.read_writes.rename(self.mutation_renames))

    class Corrected(CustomGraphPass):
        """Leaves each graph as it is."""

        def __call__(self, graph: torch.fx.Graph) -> None:
            return

        def uuid(self) -> str:
            return _CORRECTION

    setattr(SchedulerNode, made_anew.__name__, renamed)
    return Corrected()
