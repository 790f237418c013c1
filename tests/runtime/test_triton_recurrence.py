"""The Triton kernels of the recurrence against its loop over tokens, in Triton's interpreter."""

from importlib import import_module

import pytest
from triton_runs import run_interpreted

pytest.importorskip("triton")

# B, S, H, K, V: one head or several a program, columns in blocks, sizes that fill no block.
SHAPES = [(2, 7, 3, 5, 4), (1, 9, 20, 16, 1), (1, 5, 2, 33, 40)]

SCRIPT = f"""
import importlib, itertools, torch
from meshwright.runtime.engine.kernels import triton_recurrence as ours

recurrence = importlib.import_module("meshwright.runtime.engine.kernels.recurrence")

ours._CHUNK, ours._ELEMENTS, ours._FEW, ours._OF_A_WARP = 4, 1024, 256, 512
torch.manual_seed(0)
for (b, s, h, rows, columns), by_row, delta in itertools.product({SHAPES}, (0, 1), (0, 1)):
    k = torch.randn(b, s, h, rows) / rows**0.5
    q = torch.randn(b, s, 1, rows).expand(b, s, h, rows)  # one for all heads
    v = torch.randn(b, h, s, columns).transpose(1, 2)
    g = -torch.rand(b, s, h, rows) if by_row else -torch.rand(b, s, h)
    beta, do = torch.rand(b, s, h), torch.randn(b, s, h, columns)
    given = q, k, v, g, beta, bool(delta)
    exact = *(x.double() for x in given[:5]), bool(delta)
    found = ours.forward(*given), *ours.backward(do, *given)
    wanted = recurrence._loop(*exact), *recurrence._loop_backward(do.double(), *exact)
    for a, w, like in zip(found, wanted, (v, *given[:5]), strict=True):
        assert a.shape == w.shape and a.dtype == like.dtype
        torch.testing.assert_close(a.double(), w, rtol=1e-5, atol=1e-5)
    half = *(x.bfloat16() for x in given[:5]), bool(delta)
    assert [x.dtype for x in ours.backward(do.bfloat16(), *half)] == 5 * [torch.bfloat16]
print("equal")
"""

CHECKED = """
import importlib, torch, warnings
from meshwright.runtime.engine.kernels import triton_recurrence as ours

recurrence = importlib.import_module("meshwright.runtime.engine.kernels.recurrence")

cpu = torch.device("cpu")
assert recurrence._equal_here(cpu)
recurrence._equal_here.cache_clear()
right = ours.forward
ours.forward = lambda *given: 1.1 * right(*given)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert not recurrence._equal_here(cpu)
assert any("recurrences are computed by torch's own ops on cpu" in str(w.message) for w in said)
print("equal")
"""


def test_kernels_are_the_loop_over_tokens() -> None:
    run_interpreted(SCRIPT)


def test_a_device_that_computes_something_else_goes_on_with_the_ops_of_torch() -> None:
    run_interpreted(CHECKED)


@pytest.mark.parametrize("shape", [(2, 64, 2048, 16, 1), (2, 64, 32, 128, 128)])
def test_kernels_compile_for_the_cards_that_plans_are_made_for(shape: tuple[int, ...]) -> None:
    """To machine code, without a card: what a loop carries keeps its type, and so on."""
    import torch

    compiler = pytest.importorskip("triton.backends.compiler")
    from triton import compile as compiled
    from triton.compiler import ASTSource

    from meshwright.runtime.engine.kernels import triton_recurrence as ours

    b, s, h, rows, columns = shape
    k, v = torch.empty(b, s, h, rows, device="meta"), torch.empty(b, s, h, columns, device="meta")
    _, _, blocks = ours._blocks(k, v)
    warps = blocks.pop("num_warps")
    pointers = ("q", "k", "v", "g", "beta", "out", "do", "dv")
    for kernel in (ours._forward_kernel, ours._backward_kernel):
        fixed = {"BY_ROW": True, "DELTA": True, "CHUNK": ours._CHUNK, **blocks}
        types = {name: "i32" for name in kernel.arg_names}
        types |= {name: "constexpr" for name in fixed}
        types |= dict.fromkeys(pointers, "*bf16")
        types |= dict.fromkeys(("kept", "again", "dq", "dk", "dg", "dbeta"), "*fp32")
        names = kernel.arg_names
        source = ASTSource(
            fn=kernel,
            signature={name: types[name] for name in names},
            constexprs={name: value for name, value in fixed.items() if name in names},
        )
        for capability in (80, 90):
            target = compiler.GPUTarget("cuda", capability, 32)
            made = compiled(source, target=target, options={"num_warps": warps})
            assert "cubin" in made.asm


def test_what_is_priced_is_what_the_kernels_hold() -> None:
    from meshwright.ir.ops import recurrence as priced
    from meshwright.runtime.engine.kernels import triton_recurrence as ours

    loop = import_module("meshwright.runtime.engine.kernels.recurrence")
    assert priced._CHUNK == ours._CHUNK == loop._CHUNK
    assert priced._ELEMENTS == ours._ELEMENTS


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2, 70, 2048, 16, 1), (2, 70, 4, 128, 128), (1, 33, 3, 64, 48)])
@pytest.mark.parametrize("delta", [False, True])
def test_on_a_card_they_are_the_loop(shape: tuple[int, ...], delta: bool) -> None:
    """Of a decay by row and one for all, whatever the operands' strides."""
    import torch

    recurrence = import_module("meshwright.runtime.engine.kernels.recurrence")
    b, s, h, rows, columns = shape
    torch.manual_seed(0)
    k = torch.randn(b, s, h, rows, device="cuda") / rows**0.5
    q = torch.randn(b, s, 1, rows, device="cuda").expand(b, s, h, rows)
    v, do = torch.randn(2, b, h, s, columns, device="cuda").transpose(2, 3)
    beta = torch.rand(b, s, h, device="cuda")
    for g in (-torch.rand(b, s, h, device="cuda"), -torch.rand(b, s, h, rows, device="cuda")):
        given = q, k, v, g, beta, delta
        assert recurrence._fused(v)
        found = recurrence._recurrence(*given), *recurrence._recurrence_backward(do, *given)
        wanted = recurrence._loop(*given), *recurrence._loop_backward(do, *given)
        for a, w in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, w, rtol=1e-4, atol=1e-4 * float(w.abs().max()))
