"""Which plans issue a micro-batch as one CUDA graph, recorded once; see runtime/engine/replay.py.

A rank does so where it holds the whole model: between its forward and its backward nothing waits
for another stage. Gradients may travel in a step's last micro-batch, but not behind the next one.
"""

from collections.abc import Iterable

from .graph import Graph
from .ops.call import registrations

RECORDS = "cuda"  # devices that record
ALTERNATES = "1f1b"  # the schedule whose backward follows each forward


def may_replay(device_type: str, graphs: Iterable[Graph]) -> bool:
    """Return whether functions can be recorded: those of a user may wait for the device."""
    return device_type == RECORDS and not any(registrations(graph.ops) for graph in graphs)


def replays(stages: int, schedule: str, zero: int, num_microbatches: int) -> bool:
    """Return whether a layout is one whose micro-batches can be recorded."""
    settled = zero < 2 or num_microbatches == 1
    return stages == 1 and schedule == ALTERNATES and settled
