"""What a run says of its device: the peak that mfu is measured against, and memory held."""

import torch

# Dense bf16 peaks by the vendors' data sheets, flops per second of one card, by a part of the name
# that the driver gives; of the GeForce cards with sums in float32, as training takes them.
PEAKS = {
    "H200": 989.4e12,
    "H100": 989.4e12,
    "A100": 312e12,
    "B200": 2250e12,
    "MI300X": 1307.4e12,
    "L40S": 362e12,
    "RTX 4090": 165.2e12,
    "RTX 5090": 209.5e12,
}


def peak_flops(device: torch.device) -> float | None:
    """Return the card's dense bf16 peak, None where it is not known (mfu is then null)."""
    return peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def device_text(device: torch.device) -> str:
    """Return the device by the name that its driver gives; a CPU by its kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU rank"


def peak_of(name: str) -> float | None:
    """Return the peak of a card by the name that the driver gives."""
    return next((peak for key, peak in PEAKS.items() if key in name), None)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most bytes held: by the allocator on CUDA, by the process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
