"""AdamW's kernel against torch's in float64: one step of any types, gradient scaled."""

import pytest
import triton_runs

KERNEL = """
import torch
from torch.optim.adamw import adamw
from meshwright.runtime.optimizers.triton_adamw import adamw_
device = "cuda" if torch.cuda.is_available() else "cpu"
bf16, f32 = torch.bfloat16, torch.float32
for weights, grad, count, decay, scale in (
    (f32, f32, 1, 0.1, 1.0), (f32, f32, 900, 0.0, 0.25), (f32, bf16, 7, 0.1, 0.5),
    (bf16, bf16, 7, 0.1, 0.5),
):
    torch.manual_seed(count)
    n = 5000  # the last block is not full
    own = [torch.randn(n), 1e-2 * torch.randn(n), 1e-3 * torch.randn(n), 1e-5 * torch.rand(n)]
    own = [x.to(t).to(device) for x, t in zip(own, (weights, grad, weights, weights))]
    spare = torch.full((100,), 7.0, dtype=weights, device=device)
    found = [torch.cat([x, spare.to(x.dtype)]) for x in own]
    w, g, m, v = [x.double() for x in own]
    before = [torch.full((), count - 1.0, device=device)]
    adamw([w], [g * scale], [m], [v], [], before, fused=True, amsgrad=False, maximize=False,
          beta1=0.9, beta2=0.95, lr=0.01, weight_decay=decay, eps=1e-8)
    adamw_(*(x[:n] for x in found), scale=scale, lr=0.01, decay=decay, betas=(0.9, 0.95), eps=1e-8,
           count=count)
    assert torch.equal(found[1][:n], own[1]), "the gradient is read only"
    for x, y, old in zip(found, (w, g, m, v), own):
        assert torch.all(x[n:] == 7.0), "nothing is written past the end"
        # Half a unit in the last place; the interpreter cuts bits off where a GPU rounds.
        limit = 2e-6 if x.dtype is f32 else 2.0**-8 if device == "cuda" else 2.0**-7
        size = torch.maximum(y.abs(), old.double().abs()).clamp_min(1e-6)
        off = (x[:n].double() - y).abs() / size
        assert off.max() <= limit * 1.01, (weights, grad, count, off.max())
    assert not torch.equal(found[0][:n], own[0])
print("equal")
"""


@triton_runs.on_linux
def test_the_kernel_interpreted_equals_torch() -> None:
    triton_runs.run_interpreted(KERNEL)


@pytest.mark.gpu
def test_the_kernel_equals_torch() -> None:
    triton_runs.run(KERNEL)
