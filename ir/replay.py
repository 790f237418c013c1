"""Which plans issue their functions as CUDA graphs, recorded once; see runtime/engine/replay.py.

A rank that holds the whole model records a micro-batch where each backward follows its forward.
Elsewhere a rank records each action of its schedule, of so many micro-batches at most.
Gradients may travel in a step's last micro-batch, but not behind the next one.
"""

from collections.abc import Iterable

from .graph import Graph
from .ops.call import registrations

RECORDS = "cuda"  # devices that record
ALTERNATES = "1f1b"  # the schedule whose backward follows each forward
# What a recorded kernel holds was not read: 14,000 of a rank and step, 8 micro-batches, had room.
MOST_MICROBATCHES = 64


def may_replay(device_type: str, graphs: Iterable[Graph]) -> bool:
    """Return whether functions can be recorded: those of a user may wait for the device."""
    return device_type == RECORDS and not any(registrations(graph.ops) for graph in graphs)


def replays(stages: int, schedule: str, zero: int, num_microbatches: int) -> bool:
    """Return whether a layout is one whose kernels can be recorded."""
    settled = zero < 2 or (stages == 1 and num_microbatches == 1)
    alternates = stages == 1 and schedule == ALTERNATES
    return settled and (alternates or num_microbatches <= MOST_MICROBATCHES)
