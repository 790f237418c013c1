"""A function that torch cannot compile runs as it stands, and is named."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from meshwright.runtime.engine import compiling


def broken(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
    raise RuntimeError("no such instruction\nmore lines")


def doubled(x: Tensor) -> Tensor:
    return x * 2


@pytest.fixture
def broken_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **words: kept(f, backend=broken, **words))


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
