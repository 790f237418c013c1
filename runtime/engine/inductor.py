"""torch.compile, with what fusing.py chooses and a fault of its CPU backend corrected.

SchedulerNode.recompute_size_and_body of torch 2.11 to 2.13 (torch/_inductor/scheduler.py) makes a
node's dependencies anew without the names that mutated buffers have by then. When the CPU backend
so fits one loop to another to fuse the two, a value read after a collective, or after any op that
writes in place, may be read before it. tests/runtime/test_compiling.py shows it.
"""

import fcntl
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch

from .fusing import LIMITS, keep_order, keep_rows

# Changed with the correction and with fusing.py: part of the key that torch keeps compiled code
# under.
_CORRECTION = "meshwright: names of mutated buffers, order in memory, rows kept, 1"


def compile_whole(function: Callable) -> Callable:
    """Return the function, compiled without a graph break when it is first called, for the shapes
    of that call."""
    return torch.compile(function, fullgraph=True, dynamic=False, backend=_compile_alone)


def _compile_alone(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Any:
    """Compile a graph while no other process compiles the same one: that finds it in the cache."""
    from torch._inductor.compile_fx import compile_fx

    with _alone(graph, inputs):
        patches = {"post_grad_custom_pre_pass": _corrected(), **LIMITS}
        return compile_fx(graph, list(inputs), config_patches=patches)


@contextmanager
def _alone(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Iterator[None]:
    """Hold the lock of a graph, a file beside torch's cache, which ranks and machines may share. A
    file system without locks keeps nobody out. No rank waits for another while it compiles, so the
    one that holds the lock lets go of it."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    shapes = [(x.shape, x.dtype) if isinstance(x, torch.Tensor) else x for x in inputs]
    key = hashlib.sha256(f"{graph.code}{shapes}".encode()).hexdigest()[:24]
    folder = Path(cache_dir()) / "meshwright-locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / key, "w")
    except OSError:
        yield
        return
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_counts() -> tuple[int, int]:
    """Return how many graphs this process found in torch's cache, and how many it compiled."""
    counted = torch._dynamo.utils.counters["inductor"]
    made = counted["fxgraph_cache_miss"] + counted["fxgraph_cache_bypass"]
    return counted["fxgraph_cache_hit"], made


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
        """Keeps the order in memory of what is read through views."""

        def __call__(self, graph: torch.fx.Graph) -> None:
            keep_order(graph)

        def uuid(self) -> str:
            return _CORRECTION

    setattr(SchedulerNode, made_anew.__name__, renamed)
    keep_rows()
    return Corrected()
