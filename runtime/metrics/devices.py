"""What a run says of its device: the peak that mfu is measured against, and memory held."""

import torch

# Dense bf16 peaks by the vendor's datasheets, flops per second of one card.
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


def peak_flops(device: torch.device) -> float | None:
    """The card's dense bf16 peak, None where it is not known (mfu is then null)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in _PEAKS.items() if key in name), None)


def peak_memory_bytes(device: torch.device) -> int:
    """Most bytes held: by the allocator on CUDA, by the process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
