"""What a rank asks of CUDA, NCCL and torch's allocator by environment variables, before they start.

A variable that is set already stays as it is.
"""

import json
import os
from pathlib import Path

ALWAYS = {
    # NCCL would register what a CUDA graph sends, which memory of that kind does not allow.
    "NCCL_GRAPH_REGISTER": "0",
    # NCCL would order its calls in a CUDA graph with those outside of it, 15 us each on H200s. The
    # executor calls nothing outside before all graphs have run.
    "NCCL_GRAPH_MIXING_SUPPORT": "0",
    # Each way between stages has a communicator of its own, whose transfers come in order.
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false",
}
# CUDA puts its streams into this number of queues. A stream that waits for another rank blocks the
# streams behind it in its queue, so a pipeline takes the most that CUDA offers. Other programs keep
# CUDA's default of 8: with 32, memsets in a CUDA graph start 6 us later (H200, 2026-11-29).
OF_PIPELINES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
# Buffers of several GiB find room where smaller ones were freed.
ALLOCATOR = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
OLD_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def set_for(folder: Path) -> None:
    """Set the variables for the program in `folder`. Raises ValueError where its needs.json is no
    JSON."""
    path = folder / "needs.json"
    stages = json.loads(path.read_text()).get("stages", 1) if path.is_file() else 1
    wanted = ALWAYS | (OF_PIPELINES if stages > 1 else {})
    for name, value in (wanted if OLD_ALLOCATOR in os.environ else wanted | ALLOCATOR).items():
        os.environ.setdefault(name, value)
