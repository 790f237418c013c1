"""Which plans issue their functions as CUDA graphs, recorded once; see runtime/engine/replay.py.

With one stage and the schedule 1F1B, a rank records the forward and backward of one micro-batch.
In all other plans a rank records every action of its schedule. Such a plan may have at most
MOST_MICROBATCHES micro-batches, as each action takes memory for a recording of its own.
Gradients may be reduced in a step's last micro-batch, but not while the next micro-batch runs.
"""

from collections.abc import Iterable

from .graph import Graph
from .ops.call import registrations

RECORDS = "cuda"  # devices that record
ALTERNATES = "1f1b"  # the schedule whose backward follows each forward
# The memory of a recorded kernel was not measured. 14,000 kernels, of 8 micro-batches, had room.
MOST_MICROBATCHES = 64


def may_replay(device_type: str, graphs: Iterable[Graph]) -> bool:
    """Return whether functions can be recorded: those of a user may wait for the device."""
    return device_type == RECORDS and not any(registrations(graph.ops) for graph in graphs)


def replays(stages: int, schedule: str, zero: int, num_microbatches: int) -> bool:
    """Return whether a layout is one whose kernels can be recorded."""
    settled = zero < 2 or (stages == 1 and num_microbatches == 1)
    alternates = stages == 1 and schedule == ALTERNATES
    return settled and (alternates or num_microbatches <= MOST_MICROBATCHES)
