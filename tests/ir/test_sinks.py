"""Attention with sinks, expanded: values and gradients of a softmax that has the sink's column."""

import pytest
import torch
from torch import Tensor

from meshwright.ir.capture import semantic, sinks
from meshwright.models.attention import AttentionCore
from meshwright.runtime.engine import kernels

B, H, K, S, D = 2, 4, 2, 7, 8
SCALE = 0.3
RULES = {
    "causal": (True, 0, 0.0),
    "window": (True, 3, 0.0),
    "all keys": (False, 0, 0.0),
    "soft-cap": (True, 0, 5.0),
}


@pytest.fixture(autouse=True)
def _run_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels that a program calls, in place of ops that are traced alone."""

    def forward(q: Tensor, k: Tensor, v: Tensor, *rule: object) -> tuple[Tensor, Tensor]:
        return kernels.attention(q, k, v, **_named(rule))

    def backward(*given: object) -> tuple[Tensor, Tensor, Tensor]:
        return kernels.attention_backward(*given[:6], **_named(given[6:]))

    monkeypatch.setattr(semantic, "attention", forward)
    monkeypatch.setattr(semantic, "attention_backward", backward)


def _named(rule: tuple[object, ...]) -> dict[str, object]:
    return dict(zip(("scale", "causal", "window", "softcap"), rule, strict=True))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", [(H,), (B, H, S, 1)], ids=["heads", "queries"])
def test_it_is_a_softmax_with_one_more_column(rule: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    causal, window, softcap = RULES[rule]
    given = [torch.randn(B, n, S, D, dtype=torch.float64) for n in (H, K, K)]
    given.append(3 * torch.randn(shape, dtype=torch.float64))
    core = AttentionCore(SCALE, window or None, softcap or None, causal)

    def beside(*given: Tensor) -> Tensor:
        return sinks.attend_beside(*given, SCALE, causal, window, softcap)

    found, expected = (_with_gradients(run, given) for run in (beside, core))
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [-300.0, 300.0])
def test_sinks_far_from_all_scores_are_exact(size: float) -> None:
    """Below them a sink takes nothing, above them all; nothing is infinite."""
    q, k, v = (torch.randn(1, 1, S, D, dtype=torch.float64) for _ in range(3))
    far = torch.tensor([size], dtype=torch.float64)
    out, *grads = _with_gradients(
        lambda *given: sinks.attend_beside(*given, SCALE, True, 0, 0.0), [q, k, v, far]
    )
    expected, *_ = _with_gradients(AttentionCore(SCALE), [q, k, v, far])
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-100)
    assert all(bool(grad.isfinite().all()) for grad in grads)


def _with_gradients(run, given: list[Tensor]) -> list[Tensor]:  # type: ignore[no-untyped-def]
    leaves = [x.clone().requires_grad_() for x in given]
    out = run(*leaves)
    return [out, *torch.autograd.grad((out * torch.linspace(-1, 1, D)).sum(), leaves)]
