"""The Triton kernel of experts against the torch ops beside it, in Triton's interpreter."""

import pytest
from triton_runs import run_interpreted

pytest.importorskip("triton")

# Tokens, choices, experts in all, experts here, first of them, features in and out.
SIZES = [(9, 2, 5, 5, 0, 16, 24), (40, 3, 6, 2, 3, 21, 33), (1, 1, 4, 4, 0, 8, 8)]

SCRIPT = f"""
import itertools, torch
from meshwright.runtime.engine.kernels import experts, triton_experts as ours

ours.TUNED, ours._BAND = ours.Tile(16, 16, 16, 4, 1), 2
torch.manual_seed(0)
for (n, k, total, held, start, i, o), transposed, shared in itertools.product(
    {SIZES}, (True, False), (True, False)
):
    ids = torch.randint(total, (n, k))
    ids[:, 0] = start  # one expert far above the others
    x = torch.randn(n, i) if shared else torch.randn(n, k, i)
    w = torch.randn(held, i, o) if transposed else torch.randn(held, o, i)
    dy = torch.randn(n, k, o)
    exact = [y.double() if y.is_floating_point() else y for y in (dy, x, w)]
    wanted = (
        experts._expert_linear(exact[1], exact[2], ids, transposed, start),
        experts._expert_linear_input_grad(exact[0], exact[2], ids, transposed, shared, start),
    )
    experts._fused = lambda x: x.dtype == torch.float32
    found = (
        experts._expert_linear(x, w, ids, transposed, start),
        experts._expert_linear_input_grad(dy, w, ids, transposed, shared, start),
    )
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
    away = (ids < start) | (ids >= start + held)
    assert not found[0][away].any() and (start == 0 or away.any())
print("equal")
"""

CHECKED = """
import torch, warnings
from meshwright.runtime.engine.kernels import experts, triton_experts as ours

cpu = torch.device("cpu")
assert experts._equal_here(cpu)
experts._equal_here.cache_clear()
right = ours.products
ours.products = lambda *given: 1.1 * right(*given)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert not experts._equal_here(cpu) and "experts are computed by" in str(said[0].message)
print("equal")
"""


def test_the_kernel_compiles_for_the_cards_that_plans_are_made_for() -> None:
    """To machine code, without a card, in the blocks of large and of small cards."""
    compiler = pytest.importorskip("triton.backends.compiler")
    from triton import compile as compiled
    from triton.compiler import ASTSource

    from meshwright.runtime.engine.kernels import triton_experts as ours

    kernel, tensors = ours._products_kernel, {"x": "*bf16", "w": "*bf16", "made": "*bf16"}
    tensors |= {"order": "*i64", "ends": "*i64", "groups": "*i32", "firsts": "*i32"}
    for tile, capability in ((ours.TUNED, 90), (ours.LEAN, 80)):
        constants = {"ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth, "BAND": 8}
        constants |= {"EXACT": False, "WHOLE": True}
        source = ASTSource(
            fn=kernel,
            signature={
                name: "constexpr" if name in constants else tensors.get(name, "i32")
                for name in kernel.arg_names
            },
            constexprs=constants,
        )
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
        target = compiler.GPUTarget("cuda", capability, 32)
        assert "cubin" in compiled(source, target=target, options=options).asm


def test_the_kernel_equals_the_formula() -> None:
    run_interpreted(SCRIPT)


def test_a_wrong_kernel_is_not_used() -> None:
    run_interpreted(CHECKED)
