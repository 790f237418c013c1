"""Where the time of a step goes on a card: kernels by kind, the longest ones, and idle time."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

Key = TypeVar("Key")
LONGEST = 25  # kernels that are named
# By a part of a kernel's name, the first that fits; others are "pointwise".
KINDS = (
    ("nccl", "links"),
    ("memcpy", "copies"),
    ("memset", "copies"),
    ("attention", "attention"),
    ("_backward_keys", "attention"),
    ("_backward_queries", "attention"),
    ("fmha", "attention"),
    ("flash", "attention"),
    ("cudnn", "attention"),
    ("sdpa", "attention"),
    ("gemm", "matmul"),
    ("nvjet", "matmul"),
    ("cutlass", "matmul"),
    ("splitk", "matmul"),
    ("xmma", "matmul"),
)


Spans = list[tuple[str, float, float]]  # name, start and end in us


def spans_of(step: Callable[[], object]) -> Spans:
    """Run a step under the profiler and return its kernels."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    return [
        (event.name, event.time_range.start, event.time_range.end)
        for event in found.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]


def by_kind(spans: Spans) -> str:
    """Return the ms of each kind in one line."""
    kinds = defaultdict[str, float](float)
    for name, start, end in spans:
        kinds[kind_of(name)] += end - start
    return ", ".join(f"{kind} {us / 1e3:.2f} ms" for kind, us in sorted(kinds.items()))


def kernels_of(spans: Spans) -> list[str]:
    """Return lines: ms and kernels by kind, then by name.

    Of links the time includes that in which a rank waits for the others. Idle is what no kernel of
    any stream fills between the first and the last.
    """
    kinds, names = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for name, start, end in spans:
        kinds[kind_of(name)].append(end - start)
        names[name].append(end - start)
    gaps = _gaps(spans)
    idle, whole = sum(map(sum, gaps.values())), max(s[2] for s in spans) - min(s[1] for s in spans)
    lines = [f"{whole / 1e3:9.2f} ms from first to last, idle {idle / 1e3:.2f}"]
    lines += [
        _line(f"idle between {before} and {after}", us) for (before, after), us in _longest(gaps)
    ]
    lines += [_line(kind, times) for kind, times in _longest(kinds)]
    lines += [_line(f"{kind_of(name)}: {name[:110]}", times) for name, times in _longest(names)]
    return lines


def kind_of(kernel: str) -> str:
    """Return the kind that a kernel's name tells."""
    lower = kernel.lower()
    if lower == "_forward":  # of our attention (runtime/engine/kernels/triton_attention.py)
        return "attention"
    return next((kind for part, kind in KINDS if part in lower), "pointwise")


def _longest(found: dict[Key, list[float]]) -> list[tuple[Key, list[float]]]:
    order = sorted(found.items(), key=lambda item: -sum(item[1]))
    return [item for _, item in zip(range(LONGEST), order, strict=False)]


def _line(name: str, times: list[float]) -> str:
    return f"{sum(times) / 1e3:9.2f} ms {len(times):6d} x {sum(times) / len(times):9.1f} us  {name}"


def _gaps(spans: Iterable[tuple[str, float, float]]) -> dict[tuple[str, str], list[float]]:
    """Return the us that no span covers, by the kind of the kernel before and of the one after."""
    found = defaultdict[tuple[str, str], list[float]](list)
    (last, _, reached), *others = sorted(spans, key=lambda span: span[1])
    for name, start, end in others:
        if start > reached:
            found[kind_of(last), kind_of(name)].append(start - reached)
        if end > reached:
            last, reached = name, end
    return found
