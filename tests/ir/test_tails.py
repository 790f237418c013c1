"""What capture makes of logits: one loss for each token, in one export whatever makes them."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from meshwright.ir.capture import export
from meshwright.ir.errors import CaptureError

VOCAB, DIM = 31, 8


class Tailed(nn.Module):
    def __init__(self, tail: Callable[[Tensor], Tensor], bias: bool = False) -> None:
        super().__init__()
        self.embed, self.tail = nn.Embedding(VOCAB, DIM), tail
        self.head = nn.Linear(DIM, VOCAB, bias=bias)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tail(self.head(self.embed(tokens)))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_a_head_with_bias_is_exported_once(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, exported_for = [], export.exported_for
    monkeypatch.setattr(
        export, "exported_for", lambda *given: (calls.append(1), exported_for(*given))[1]
    )
    found = export.trace(partial(Tailed, lambda x: x, True), "m", dtype, VOCAB)
    assert len(calls) == 1
    targets = [op.target for op in found.graph.ops]
    wide = ["to.dtype"] if dtype == "bf16" else []
    own = ["clamp", "unsqueeze", "gather", "squeeze.dim", "logsumexp", "sub.Tensor"]
    assert targets[2 : 2 + len(wide + own)] == wide + own
    dtypes = {op.target: op.output.dtype for op in found.graph.ops}
    assert dtypes["logsumexp"] == dtypes["gather"] == ("f64" if dtype == "f64" else "f32")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("tail", "shape"),
    [
        (lambda x: x[:, :-1], "[B, S-1, 31]"),
        (lambda x: torch.cat([x, x], 1), "[B, 2*S, 31]"),
        (lambda x: x.reshape(-1, 1, VOCAB), "[B*S, 1, 31]"),
    ],
)
def test_logits_that_are_not_one_for_each_token_are_refused(
    tail: Callable[[Tensor], Tensor], shape: str, bias: bool
) -> None:
    with pytest.raises(CaptureError) as error:
        export.trace(partial(Tailed, tail, bias), "m", "f32", VOCAB)
    assert str(error.value) == (
        f"model m: its forward returns logits of shape {shape}; return [B, S, V], one for each "
        "token and entry of the vocabulary"
    )
