"""Compiled functions compute what they say; one that torch cannot compile runs as it stands."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from meshwright.runtime.engine import compiling
from meshwright.runtime.engine.inductor import compile_whole


def broken(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
    raise RuntimeError("no such instruction\nmore lines")


def doubled(x: Tensor) -> Tensor:
    return x * 2


@pytest.fixture
def broken_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **words: kept(f, backend=broken))


def test_it_runs_uncompiled_and_says_so_once(broken_backend: None) -> None:
    said: list[str] = []
    call = compiling.Compiler(said.append)(doubled)
    assert call(torch.ones(2)).tolist() == call(torch.ones(2)).tolist() == [2.0, 2.0]
    (line,) = said
    assert line.startswith("torch.compile fails on doubled: ")
    assert "no such instruction" in line and "\n" not in line


def test_without_a_listener_the_error_is_raised(broken_backend: None) -> None:
    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match="no such instruction"):
        compiling.Compiler()(doubled)(torch.ones(2))


def test_an_error_of_the_function_itself_is_raised() -> None:
    def fails(x: Tensor) -> Tensor:
        return x.view(3)

    said: list[str] = []
    with pytest.raises(RuntimeError):
        fast = compiling.Compiler(said.append)(fails)
        fast(torch.ones(2))


@torch.library.custom_op("meshwright_tests::add_mean", mutates_args=("x",))
def add_mean(x: Tensor, y: Tensor) -> None:
    x.add_(y.mean())


def read_behind_a_write(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """Two loops over `d` that torch fuses: the first for `total`, the second of `m` as written."""
    d = a @ b
    part = torch.ops.aten.slice_backward(d.narrow(1, 5, 7), (8, 12), 1, 5, 12, 1)
    add_mean(total, torch.where(b[:8] > d, part, b[:8]))
    m = d @ b
    add_mean(m, b)
    return d + m


@pytest.mark.long
def test_a_share_of_a_matmul_is_added() -> None:
    """As emitted text says it: torch drops `alpha` where it makes an addmm of a matmul and add_."""

    def add_share(grad: Tensor, a: Tensor, b: Tensor) -> Tensor:
        d = a.t() @ b
        return grad.add_(d.to(grad.dtype) / 2)

    grad, a, b = torch.randn(3, 5), torch.randn(8, 3), torch.randn(8, 5)
    found = compile_whole(add_share)(grad.clone(), a, b)
    assert torch.allclose(found, grad + a.t() @ b / 2)


def as_torch_has_it(function: Callable) -> Callable:
    """Compile without the correction."""
    from torch._inductor.scheduler import SchedulerNode

    kept = SchedulerNode.recompute_size_and_body
    compiled = torch.compile(function, fullgraph=True, dynamic=False)

    def call(*arguments: Tensor) -> Tensor:
        plain = getattr(kept, "__wrapped__", kept)
        with patch.object(SchedulerNode, "recompute_size_and_body", plain):
            return compiled(*arguments)

    return call


@pytest.mark.parametrize(
    ("compiled", "right"), [(compile_whole, True), (as_torch_has_it, False)], ids=["ours", "torch"]
)
def test_a_value_is_read_behind_what_writes_it(compiled: Callable, right: bool) -> None:
    """Where torch alone computes this right, the correction can go."""
    a, b = torch.rand(8, 12, dtype=torch.float64), torch.rand(12, 12, dtype=torch.float64)
    want = read_behind_a_write(a, b, torch.zeros(3, dtype=torch.float64))
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        found = compiled(read_behind_a_write)(a, b, torch.zeros(3, dtype=torch.float64))
    assert torch.allclose(found, want) == right


_TWICE = """
import sys, torch
from meshwright.runtime.engine.inductor import cache_counts, compile_whole
with torch.no_grad():
    call = compile_whole(lambda x: torch.tanh(x @ x).sum(0) * 3)
    call(torch.ones(8, 8))
print(cache_counts())
"""


@pytest.mark.long
def test_processes_that_share_a_cache_compile_a_graph_once(tmp_path: Path) -> None:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", _TWICE]
    processes = [
        subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    found = sorted(process.communicate(timeout=300)[0].strip() for process in processes)
    assert found == ["(0, 1)", "(1, 0)", "(1, 0)"]
