"""A safetensors file written as a stream, with one tensor in memory at a time.

The format: eight bytes of header length (little-endian), a JSON header {name: {dtype, shape,
data_offsets}} padded with spaces to eight bytes, then every tensor's elements, little-endian, in
the header's order. All of the header follows from names, shapes and dtypes, so it goes first.
https://github.com/huggingface/safetensors#format
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 8


@dataclass(frozen=True)
class Entry:
    """A tensor to be written; make: gives it, of this dtype and shape, when its turn comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(
    file: IO[bytes], entries: Sequence[Entry], wrote: Callable[[Entry], None] = lambda entry: None
) -> None:
    """Write entries into `file`, with the metadata {"format": "pt"}. wrote: called after each.

    A wide dtype goes before a narrow one, so that each is aligned; then by name.
    """
    ordered = sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.name))
    file.write(_header(ordered))
    for entry in ordered:
        file.write(_elements(entry))
        wrote(entry)


def _header(entries: Sequence[Entry]) -> bytes:
    said: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    start = 0
    for entry in entries:
        offsets = [start, start + entry.num_bytes]
        said[entry.name] = {
            "dtype": _NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": offsets,
        }
        start = offsets[1]
    text = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _elements(entry: Entry) -> memoryview:
    tensor = entry.make()
    assert (tensor.dtype, tuple(tensor.shape)) == (entry.dtype, entry.shape), entry.name
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
