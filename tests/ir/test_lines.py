"""Ops are named by the line that calls them, and taken by the line of forward that they come of."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from meshwright.ir.capture.export import trace
from meshwright.ir.capture.lines import short_line
from meshwright.ir.errors import CaptureError


def centred(h: Tensor) -> Tensor:
    mean = h.mean(-1, keepdim=True)
    return h - mean


def rolled(h: Tensor) -> Tensor:
    other = h.roll(1, dims=0)
    return h + other


class Helped(nn.Module):
    """helper: what its forward calls on its channels."""

    def __init__(self, helper: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.helper = helper
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        h = self.helper(h)
        return self.head(h)


def line(function: object, text: str) -> str:
    """`ir/test_lines.py:15` of the line of a function that holds a text."""
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    number = first + next(i for i, row in enumerate(lines) if text in row)
    return f"ir/test_lines.py:{number}"


def test_a_refusal_names_the_line_of_a_helper() -> None:
    with pytest.raises(CaptureError, match=line(rolled, "roll(")):
        trace(lambda: Helped(rolled), "helped", "f32", 16)


def test_an_op_of_a_helper_comes_of_the_line_of_forward() -> None:
    graph = trace(lambda: Helped(centred), "helped", "f32", 16).graph
    source = {op.target: op.source for op in graph.ops}
    assert source["mean.dim"] == line(Helped.forward, "self.helper(")
    assert source["embedding"] == line(Helped.forward, "self.embed")


def test_torch_records_no_stack_of_a_node_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an export takes an eighth longer; see lines_of_model."""
    asked: list[object] = []
    plain = torch.fx.proxy.CapturedTraceback

    class Counted:
        @staticmethod
        def extract() -> object:
            asked.append(None)
            return plain.extract()

    monkeypatch.setattr(torch.fx.proxy, "CapturedTraceback", Counted)
    graph = trace(lambda: Helped(centred), "helped", "f32", 16).graph
    assert len(asked) < len(graph.ops)


def test_a_folder_by_the_name_of_torch_may_hold_a_model() -> None:
    """As that of an environment may be called."""
    path = "/envs/torch/lib/python3.12/site-packages/some/modeling.py"
    assert short_line(path, 7) == "some/modeling.py:7"
    assert short_line(torch.nn.functional.__file__, 7) == ""
