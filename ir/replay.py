"""Which plans issue their functions as CUDA graphs, recorded once; see runtime/engine/replay.py.

A rank that holds the whole model records a micro-batch, a rank of a pipeline each action of its
schedule. Gradients may travel in a step's last micro-batch, but not behind the next one.
"""

from collections.abc import Iterable

from .graph import Graph
from .ops.call import registrations

RECORDS = "cuda"  # devices that record


def may_replay(device_type: str, graphs: Iterable[Graph]) -> bool:
    """Return whether functions can be recorded: those of a user may wait for the device."""
    return device_type == RECORDS and not any(registrations(graph.ops) for graph in graphs)


def replays(stages: int, zero: int, num_microbatches: int) -> bool:
    """Return whether a layout is one whose kernels can be recorded."""
    return zero < 2 or (stages == 1 and num_microbatches == 1)
