"""What fusing.py relies on in torch's compiler: kernels counted, results equal to eager ones."""

from types import SimpleNamespace

import pytest
import sympy
import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.utils import run_and_get_code

from meshwright.runtime.engine import fusing, inductor, kernels

B, S, H, D, F = 2, 32, 4, 16, 64


def rotated_back(d: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of what a rotation of [B, H, S, D] reads, as emitted text makes it."""
    part = d * sin
    first, second = part.narrow(3, 0, D // 2), part.narrow(3, D // 2, D // 2)
    slice_backward = torch.ops.aten.slice_backward
    turned = d * cos + slice_backward(-first, (B, H, S, D), 3, D // 2, D, 1)
    return turned + slice_backward(second, (B, H, S, D), 3, 0, D // 2, 1)


def rotation_backward(d: Tensor, cos: Tensor, sin: Tensor, w: Tensor, x: Tensor, grad: Tensor):
    """The gradient of a rotation of [B, H, S, D], read by both matmuls of a linear layer."""
    flat = rotated_back(d, cos, sin).transpose(1, 2).reshape(B, S, H * D)
    kernels.add_linear_weight_grad(grad, flat, x)
    return kernels.linear_input_grad(flat, w)


def norm_and_rotation_backward(d: Tensor, cos: Tensor, sin: Tensor, q: Tensor, w: Tensor):
    """The gradient of a rotated norm of heads, the norm's statistics made again."""
    turned = rotated_back(d, cos, sin)
    rsqrt = torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6)
    w_grad = (turned * q * rsqrt).sum((0, 1, 2))
    scaled = turned * w
    along = (scaled * q).mean(-1, keepdim=True)
    return (scaled - q * along * rsqrt.square()) * rsqrt, w_grad


def operands() -> tuple[Tensor, ...]:
    """Operands of `rotation_backward`, heads beside each other within a token."""
    torch.manual_seed(0)
    d = torch.randn(B, S, H, D).transpose(1, 2)
    return d, torch.randn(S, D), torch.randn(S, D), torch.randn(H * D, F), torch.randn(B, S, F)


def compiled(function, *given: Tensor) -> tuple[Tensor, str]:
    """Return what a function gives, compiled anew, and the text that calls its kernels."""
    torch._dynamo.reset()
    with config.patch(force_disable_caches=True):
        value, (text, *_) = run_and_get_code(inductor.compile_whole(function), *given)
    return value, text[text.index("def call(") :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_two_matmuls_read_is_made_once(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [x.to(dtype) for x in operands()]
    grads = [torch.zeros(H * D, F) for _ in range(3)]
    want = rotation_backward(*given, grads[0])
    got, text = compiled(rotation_backward, *given, grads[1])
    assert text.count("cpp_fused") == 1
    close = 2e-2 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(got, want, rtol=close, atol=close * 10)
    torch.testing.assert_close(grads[1], grads[0], rtol=close, atol=close * 10)

    monkeypatch.setattr(inductor, "keep_order", lambda graph: None)
    _, copied = compiled(rotation_backward, *given, grads[2])
    assert copied.count("cpp_fused") > 1, "torch has stopped copying: keep_order can go"


def test_a_rotated_norms_gradient_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    d, cos, sin, *_ = operands()
    given = d, cos, sin, torch.randn(B, S, H, D).transpose(1, 2), torch.randn(D)
    want = norm_and_rotation_backward(*given)
    got, text = compiled(norm_and_rotation_backward, *given)
    torch.testing.assert_close(got, want)

    monkeypatch.setattr(inductor, "LIMITS", {})
    _, usual = compiled(norm_and_rotation_backward, *given)
    whole = f"empty_strided_cpu(({B}, {H}, {S}, {D})"
    assert (text.count(whole), usual.count(whole)) == (1, 2)


@pytest.mark.parametrize(
    ("columns", "hint", "kept"),
    [
        (1024, ReductionHint.INNER, True),
        (fusing.LONGEST_ROW, ReductionHint.INNER, True),
        (fusing.LONGEST_ROW + 1, ReductionHint.INNER, False),
        (2048, ReductionHint.OUTER, False),
    ],
)
def test_rows_that_are_kept(columns: int, hint: ReductionHint, kept: bool) -> None:
    fusing.keep_rows()
    features = SimpleNamespace(
        get_reduction_hint=lambda: hint, reduction_numel=sympy.Integer(columns)
    )
    graph = SimpleNamespace(
        sizevars=SimpleNamespace(statically_known_leq=lambda size, limit: int(size) <= limit)
    )
    with torch._inductor.virtualized.V.set_graph_handler(graph):
        assert InductorChoices.should_use_persistent_reduction(features, False) == kept


def test_the_limits_are_torchs() -> None:
    assert all(hasattr(config, name) for name in fusing.LIMITS)
