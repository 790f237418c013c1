"""Export and import have one tensor in memory at a time."""

import ctypes
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from meshwright.runtime.checkpoint import weights
from meshwright.runtime.checkpoint.manifest import CheckpointError, Manifest, Stored
from meshwright.runtime.engine.boxes import Box

MIB = 2**20
TENSOR_BYTES = 8 * MIB
COUNT = 20


def _anonymous_bytes() -> int:
    """Memory of this process that no file backs: a mapped file that is read does not count."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("RssAnon"))


M_MMAP_THRESHOLD = -3  # of malloc.h


def _peak_bytes(work: Callable[[], object]) -> int:
    """Most memory at any moment of `work`, above what there was before it."""
    # glibc raises its bound for mappings of their own as they are freed: behind it, memory of freed
    # tensors stays with the process. A bound that is set stays.
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MIB)
    before = most = _anonymous_bytes()
    done = threading.Event()

    def sample() -> None:
        nonlocal most
        while not done.wait(1e-3):
            most = max(most, _anonymous_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    work()
    done.set()
    thread.join()
    return most - before


# One tensor, and the slack of the allocator: a second copy of one would be within it, a third not.
LIMIT_BYTES = 2.5 * TENSOR_BYTES


@pytest.mark.parametrize("transposed", [False, True])
def test_import(transposed: bool, tmp_path: Path) -> None:
    """Tensors as they are, and turned, which copies each."""
    ours, stock = (2048, 1024), (1024, 2048) if transposed else (2048, 1024)
    (tmp_path / "stock").mkdir()
    tensors = {f"w{n}": torch.full(stock, float(n)) for n in range(COUNT)}
    save_file(tensors, tmp_path / "stock" / "model.safetensors")
    del tensors
    targets = [(f"w{n}", (f"our.w{n}",), transposed) for n in range(COUNT)]
    shapes = {f"our.w{n}": ours for n in range(COUNT)}
    work = partial(weights.import_weights, tmp_path / "stock", targets, shapes, tmp_path / "ours")
    assert _peak_bytes(work) < LIMIT_BYTES
    found = load_file(tmp_path / "ours" / "model.safetensors")
    assert all(bool((found[f"our.w{n}"] == n).all()) for n in range(COUNT))


def _checkpoint(folder: Path) -> Manifest:
    """Two parameters for each stock tensor, half of each on either rank."""
    boxes = {}
    for n in range(2 * COUNT):
        halves = [Box((0, 0), (1024, 512)), Box((0, 512), (1024, 512))]
        boxes["param", f"p{n}"] = [
            Stored(box, f"rank_{rank}", f"p{n}") for rank, box in enumerate(halves)
        ]
    for rank in range(2):
        stored = {f"p{n}": torch.full((1024, 512), n + rank / 2) for n in range(2 * COUNT)}
        save_file(stored, folder / f"rank_{rank}")
    return Manifest(folder, None, {f"p{n}": (1024, 1024) for n in range(2 * COUNT)}, boxes)  # type: ignore[arg-type]


@pytest.mark.parametrize("transposed", [False, True])
def test_export(transposed: bool, tmp_path: Path) -> None:
    """Two parameters of two ranks' boxes make one stock tensor."""
    manifest = _checkpoint(tmp_path)
    targets = [(f"w{n}", (f"p{2 * n}", f"p{2 * n + 1}"), transposed) for n in range(COUNT)]
    work = partial(weights.export_weights, manifest, targets, tmp_path / "out")
    assert _peak_bytes(work) < LIMIT_BYTES
    found = load_file(tmp_path / "out" / "model.safetensors")
    for n in range(COUNT):
        whole = found[f"w{n}"].T if transposed else found[f"w{n}"]
        blocks = [[2.0 * n, 2 * n + 0.5], [2 * n + 1.0, 2 * n + 1.5]]
        wanted = torch.tensor(blocks).repeat_interleave(1024, 0).repeat_interleave(512, 1)
        assert torch.equal(whole, wanted)


def test_a_parameter_that_lacks_a_box_is_not_exported(tmp_path: Path) -> None:
    manifest = _checkpoint(tmp_path)
    manifest.boxes["param", "p3"].pop()
    targets = [(f"w{n}", (f"p{n}",), False) for n in range(2 * COUNT)]
    with pytest.raises(CheckpointError, match="524288 of the 1048576 elements of p3"):
        weights.export_weights(manifest, targets, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("limit_mib", [1, 17])
def test_files_end_below_their_limit(
    limit_mib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor above the limit has a file of its own; the index finds each."""
    monkeypatch.setattr(weights, "FILE_BYTES", limit_mib * MIB)
    tensors = {f"w{n}": torch.full((2048, 1024), float(n)) for n in range(4)}
    (tmp_path / "stock").mkdir()
    save_file(tensors, tmp_path / "stock" / "model.safetensors")
    targets = [(name, (name,), False) for name in tensors]
    shapes = {name: (2048, 1024) for name in tensors}
    out = tmp_path / "out"
    files = weights.import_weights(tmp_path / "stock", targets, shapes, out)
    assert len(files) == (4 if limit_mib == 1 else 2)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 4 * TENSOR_BYTES}
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(out / file)[name], tensors[name])


def test_an_import_reads_no_head_that_differs_from_the_table_it_is_tied_to(tmp_path: Path) -> None:
    table = torch.arange(12.0).reshape(6, 2)
    names = "model.embed_tokens.weight", "lm_head.weight"
    targets = [(names[0], ("embed.weight",), False)]
    for name, head in (("equal", table.double()), ("other", table + 1)):
        (tmp_path / name).mkdir()
        save_file(dict(zip(names, (table, head), strict=True)), tmp_path / name / "a.safetensors")
    work = partial(weights.import_weights, targets=targets, shapes={"embed.weight": (6, 2)})
    work(tmp_path / "equal", out=tmp_path / "first")
    assert torch.equal(load_file(tmp_path / "first" / "model.safetensors")["embed.weight"], table)
    with pytest.raises(CheckpointError, match=f"holds {names[1]} and {names[0]} with other values"):
        work(tmp_path / "other", out=tmp_path / "second")
    assert not (tmp_path / "second").exists()
