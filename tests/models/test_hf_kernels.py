"""Functions of stock classes that ours stand for: as the library's own, gradients too."""

from pathlib import Path

import pytest
import torch
import transformers
from equivalence.oracle import Widened
from torch import Tensor
from transformers.models.rwkv import modeling_rwkv

from meshwright.ir.capture.export import trace
from meshwright.models import load_model
from meshwright.models.hf_kernels import kernels_of
from meshwright.models.recurrence import RecurrenceCore
from meshwright.proof.prove import Subject, prove

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "context_length": 64,
}  # fmt: skip


def _by(function: object, given: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    leaves = [x.clone().requires_grad_() for x in given]
    with Widened():
        out, state = function(*leaves)  # type: ignore[operator]
    assert state is None or isinstance(state, list)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return out, torch.autograd.grad((out * weights).sum(), leaves)


SIZED = [(1.0, torch.float64), (1e3, torch.float64), (1.0, torch.float32), (100.0, torch.float32)]


@pytest.mark.parametrize(("size", "dtype"), SIZED)
def test_the_mean_of_values_equals_the_loop_of_the_library(size: float, dtype: torch.dtype) -> None:
    """size: of keys and of what a token adds to its own; exp of the larger ones is past the
    numbers of the dtype."""
    draws = torch.Generator().manual_seed(0)
    shapes = [(6,), (6,), (2, 9, 6), (2, 9, 6)]
    given = [torch.randn(s, generator=draws).double() for s in shapes]
    given[1], given[2] = given[1] * size, given[2] * size
    model = transformers.RwkvForCausalLM(transformers.RwkvConfig(**SIZES))
    with kernels_of(model, RecurrenceCore()):
        ours = modeling_rwkv.rwkv_linear_attention
        found, grads = _by(ours, [x.to(dtype) for x in given])
    assert ours is not modeling_rwkv.rwkv_linear_attention
    expected, others = _by(modeling_rwkv.rwkv_linear_attention, given)
    near = {"rtol": 1e-9, "atol": 1e-12} if dtype is torch.float64 else {"rtol": 1e-3, "atol": 1e-5}
    for one, other in zip([found, *grads], [expected, *others], strict=True):
        torch.testing.assert_close(one.double(), other, **near)


def test_rwkv_is_captured_for_every_length(tmp_path: Path) -> None:
    transformers.RwkvConfig(**SIZES).save_pretrained(tmp_path)
    source = load_model(f"hf:{tmp_path}")
    traced = trace(source.build, "rwkv", "f64", source.vocab_size)
    assert traced.lengths[1] is None or traced.lengths[1] >= 64
    assert any(op.target == "mw.recurrence" for op in traced.graph.ops)
    assert source.plain
    prove(Subject("rwkv", source.plain, source.vocab_size, source.max_seq), traced)


def test_bloom_is_captured_with_the_slope_of_its_own_function(tmp_path: Path) -> None:
    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    config.save_pretrained(tmp_path)
    source = load_model(f"hf:{tmp_path}")
    traced = trace(source.build, "bloom", "f64", source.vocab_size)
    assert source.plain
    prove(Subject("bloom", source.plain, source.vocab_size, source.max_seq), traced)
