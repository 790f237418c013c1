"""Safetensors written as a stream are the library's, byte for byte."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from meshwright.runtime.atomic_file import atomic_file
from meshwright.runtime.checkpoint.tensor_file import DTYPES, Entry, write_tensors


def _entry(name: str, tensor: Tensor) -> Entry:
    return Entry(name, tensor.dtype, tuple(tensor.shape), lambda: tensor)


def _write(path: Path, entries: list[Entry]) -> None:
    with atomic_file(path) as file:
        write_tensors(file, entries)


def test_the_file_is_byte_for_byte_the_librarys(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {
        "b.weight": torch.randn(3, 5),
        "a.wide": torch.randn(2, 2, dtype=torch.float64),
        "\u00fc.half": torch.randn(7).bfloat16(),
        "a.scalar": torch.tensor(1.5),
        "a.empty": torch.empty(0, 4),
        "c.flags": torch.tensor([True, False, True]),
    }
    _write(tmp_path / "ours", [_entry(*item) for item in tensors.items()])
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("name", DTYPES)
def test_the_library_reads_every_dtype(name: str, tmp_path: Path) -> None:
    tensor = torch.tensor([[0.0, 1.0], [2.0, -3.0]]).to(DTYPES[name])
    _write(tmp_path / "file", [_entry("a", tensor[:1]), _entry("x", tensor)])
    with safe_open(tmp_path / "file", framework="pt") as handle:
        assert handle.get_slice("x").get_dtype() == name
        found = handle.get_tensor("x")
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> Tensor:
        raise OSError(28, "No space left on device")

    entries = [
        _entry("a", torch.zeros(4)),
        Entry("b", torch.float32, (4,), fails),
    ]
    with pytest.raises(OSError, match="No space"):
        _write(tmp_path / "model.safetensors", entries)
    assert not list(tmp_path.iterdir())
