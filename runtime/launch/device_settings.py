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
# Streams share so many queues of the device, and one that waits blocks those behind it. More than
# CUDA's own 8 make parts of a CUDA graph wait 3 to 6 us longer for each other (H200, 2026-11-29).
OF_PIPELINES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
# Buffers of several GiB find room where smaller ones were freed.
ALLOCATOR = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
OLD_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def set_for(folder: Path) -> None:
    """Set the variables for the program in `folder`."""
    path = folder / "needs.json"
    stages = json.loads(path.read_text()).get("stages", 1) if path.is_file() else 1
    wanted = ALWAYS | (OF_PIPELINES if stages > 1 else {})
    for name, value in (wanted if OLD_ALLOCATOR in os.environ else wanted | ALLOCATOR).items():
        os.environ.setdefault(name, value)
