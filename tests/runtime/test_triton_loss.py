"""The Triton kernels of the loss against the torch ops beside them, in Triton's interpreter."""

import pytest
from triton_runs import run_interpreted

pytest.importorskip("triton")

# Rows, columns, columns that a row takes in memory, width of the gradient: odd, padded, one block.
SHAPES = [(5, 37, 40, 40), (3, 16, 16, 16), (4, 33, 33, 33)]

SCRIPT = f"""
import itertools, torch
from meshwright.runtime.engine.kernels import cross_entropy, triton_loss as ours

ours._LINES, ours._LANES, ours._TILE = 2, 4, 16
torch.manual_seed(0)
for (rows, columns, step, width), softcap, start in itertools.product({SHAPES}, (0.0, 3.0), (0, 9)):
    logits = 4 * torch.randn(rows, step)[:, :columns]
    logits[0, 1:] -= 300.0  # one column far above the others
    labels = torch.randint(start - 3, start + columns + 3, (rows,))
    labels[-1] = -100
    dlse, dpicked = torch.randn(2, rows)
    lse, picked = ours.statistics(logits, labels, softcap, start)
    given = (dlse, dpicked, labels, lse, softcap, start, width)
    dlogits = ours.gradient(logits, *given)
    exact = [x.double() if x.is_floating_point() else x for x in (logits, labels, dlse, dpicked)]
    wanted = cross_entropy._statistics_of(*exact[:2], softcap, start)
    found = lse, picked, dlogits
    given = (*exact[2:], exact[1], wanted[0], softcap, start, width)
    wanted = (*wanted, cross_entropy._gradient_of(exact[0], *given))
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape, (a.shape, b.shape)
        torch.testing.assert_close(a.double(), b, rtol=2e-6, atol=2e-6)
    assert not dlogits[:, columns:].any() and bool((picked[labels == -100] == 0).all())
    assert torch.isnan(ours.statistics(logits * float("nan"), labels, softcap, start)[0]).all()
print("equal")
"""

CHECKED = """
import torch, warnings
from meshwright.runtime.engine.kernels import cross_entropy, triton_loss as ours

cpu = torch.device("cpu")
ours._LANES, ours._TILE = 256, 1024
assert cross_entropy._equal_here(cpu)
cross_entropy._equal_here.cache_clear()
right = ours.gradient
ours.gradient = lambda *given: 1.1 * right(*given)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert not cross_entropy._equal_here(cpu)
assert any("the loss is computed by torch's own ops on cpu" in str(w.message) for w in said)
logits, labels = torch.randn(3, 50), torch.tensor([1, 2, 3])
found = cross_entropy._loss_statistics(logits, labels, 0.0, 0)
torch.testing.assert_close(found, cross_entropy._statistics_of(logits, labels, 0.0, 0))
print("equal")
"""


def test_kernels_are_the_plain_formulas_in_float32() -> None:
    run_interpreted(SCRIPT)


def test_a_device_that_computes_something_else_goes_on_with_the_ops_of_torch() -> None:
    run_interpreted(CHECKED)


def test_kernels_compile_for_the_cards_that_plans_are_made_for() -> None:
    """To machine code, without a card: what a loop carries keeps its type, and so on."""
    compiler = pytest.importorskip("triton.backends.compiler")
    from triton import compile as compiled
    from triton.compiler import ASTSource

    from meshwright.runtime.engine.kernels import triton_loss as ours

    rows = {"labels": "*i64", "lse": "*fp32", "step": "i32", "columns": "i32", "start": "i32"}
    common = {"logits": "*bf16", "softcap": "fp32"}
    more = {"dlse": "*fp32", "dpicked": "*fp32", "made": "*bf16", "width": "i32"}
    kernels = [
        (
            ours._statistics_kernel,
            {"picked": "*fp32"},
            {"LINES": ours._LINES, "LANES": ours._LANES, "ALIGNED": ours._ALIGNED},
        ),
        (ours._gradient_kernel, more, {"BLOCK": ours._TILE}),
    ]
    for kernel, own, blocks in kernels:
        constants = {"CAPPED": True, **blocks}
        types = rows | common | own | dict.fromkeys(constants, "constexpr")
        source = ASTSource(
            fn=kernel,
            signature={name: types[name] for name in kernel.arg_names},
            constexprs=constants,
        )
        for capability in (80, 90):
            target = compiler.GPUTarget("cuda", capability, 32)
            made = compiled(source, target=target, options={"num_warps": ours._WARPS})
            assert "cubin" in made.asm
