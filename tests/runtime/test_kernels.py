"""Kernels against autograd of the plain formula, and the private torch ops that they rely on."""

import gc
import importlib.util
import itertools
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from meshwright.runtime.engine import kernels
from meshwright.runtime.engine.kernels import cross_entropy as cross_entropy_file
from meshwright.runtime.engine.kernels import opaque as opaque_file
from meshwright.runtime.engine.kernels.attention import (
    _cpu_flash,
    _cpu_flash_backward,
    backend_of,
    reference,
    reference_backward,
)
from meshwright.runtime.engine.kernels.embedding import add_in_columns
from meshwright.runtime.engine.kernels.linear import _add_linear_weight_grad

EXACT = {"rtol": 1e-12, "atol": 1e-12}
LOOSE = {
    torch.float64: EXACT,
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def _randn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


# Attention

OPTIONS = {
    "causal": {"causal": True, "window": 0, "softcap": 0.0},
    "window": {"causal": True, "window": 3, "softcap": 0.0},
    "window past the end": {"causal": True, "window": 64, "softcap": 0.0},
    "softcap": {"causal": True, "window": 0, "softcap": 2.0},
    "window and softcap": {"causal": True, "window": 4, "softcap": 1.5},
    "all keys": {"causal": False, "window": 0, "softcap": 0.0},
}


def _plain_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: int, softcap: float
) -> tuple[Tensor, Tensor]:
    """Scores, mask, softmax, one line each; query i sees j with i - window < j <= i."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])[None, :]
    hidden = (distance < 0) & causal | (distance >= (window or q.shape[2] + 1))
    scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def _attention_operands(heads: int, kv_heads: int, length: int) -> list[Tensor]:
    return [_randn(2, n, length, 8) for n in (heads, kv_heads, kv_heads, heads)]


@pytest.mark.parametrize("dtype", LOOSE, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("name", OPTIONS)
def test_attention_is_the_plain_formula(
    name: str, heads: int, kv_heads: int, dtype: torch.dtype
) -> None:
    options = {"scale": 0.3, **OPTIONS[name]}
    q, k, v, do = (x.to(dtype) for x in _attention_operands(heads, kv_heads, 7))
    # The plain side starts from the same rounded operands, and computes in float64.
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    want, want_lse = _plain_attention(*exact, **options)
    wanted = torch.autograd.grad(want, exact, do.double())
    o, lse = kernels.attention(q, k, v, **options)
    found = kernels.attention_backward(do, q, k, v, o, lse, **options)
    assert (o.dtype, lse.dtype) == (dtype, torch.promote_types(dtype, torch.float32))
    torch.testing.assert_close(o.double(), want.detach(), **LOOSE[dtype])
    torch.testing.assert_close(lse.double(), want_lse.detach(), **LOOSE[dtype])
    for a, b, like in zip(found, wanted, (q, k, v), strict=True):
        assert (a.dtype, a.shape) == (dtype, like.shape)
        torch.testing.assert_close(a.double(), b, **LOOSE[dtype])


@pytest.mark.parametrize("length", [1, 5, 33])
def test_the_fast_cpu_backend_agrees_with_the_reference(length: int) -> None:
    q, k, v, do = (x.float() for x in _attention_operands(4, 2, length))
    assert backend_of(q, True, 0, 0.0) == "cpu_flash"
    options = (0.3, True, 0, 0.0)
    o, lse = _cpu_flash(q, k, v, 0.3, True)
    plain = reference(q, k, v, *options)
    torch.testing.assert_close((o, lse), plain, rtol=1e-5, atol=1e-5)
    fast = _cpu_flash_backward(do, q, k, v, o, lse, 0.3, True)
    slow = reference_backward(do, q, k, v, o, lse, *options)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (3, 0.0), (5, 0.0), (0, 5.0)])
def test_shards_of_queries_make_up_the_whole(
    dtype: torch.dtype, window: int, softcap: float, causal: bool
) -> None:
    """Three shards of queries over all keys: their outputs side by side, and the sums of their
    shares in keys and values, are those of the whole sequence. Window 5 is wider than a shard."""
    q, k, v, do = (x.to(dtype) for x in _attention_operands(4, 2, 12))
    options = {"scale": 0.3, "causal": causal, "window": window, "softcap": softcap}
    o, lse = kernels.attention(q, k, v, **options)
    whole = kernels.attention_backward(do, q, k, v, o, lse, **options)
    outs, grads = [], []
    for start in (0, 4, 8):
        part, own = (x[:, :, start : start + 4].contiguous() for x in (q, do))
        outs.append(kernels.attention(part, k, v, start=start, **options))
        given = own, part, k, v, *outs[-1]
        grads.append(kernels.attention_backward(*given, start=start, **options))
    torch.testing.assert_close(torch.cat([x for x, _ in outs], 2), o, **LOOSE[dtype])
    torch.testing.assert_close(torch.cat([x for _, x in outs], 2), lse, **LOOSE[dtype])
    dq, dk, dv = zip(*grads, strict=True)
    for found, wanted in zip((torch.cat(dq, 2), sum(dk), sum(dv)), whole, strict=True):
        torch.testing.assert_close(found, wanted, **LOOSE[dtype])


def _attended(q: Tensor, k: Tensor, v: Tensor, places: list[int], **options: object) -> Tensor:
    """Outputs of the queries at places, one query at a time over the keys that it sees."""
    rows = []
    for place in places:
        first = max(0, place + 1 - int(options["window"] or place + 1))
        last = place + 1 if options["causal"] else k.shape[2]
        keys, values = (
            x[:, :, first:last].repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v)
        )
        scores = (q[:, :, place, None] @ keys.mT) * options["scale"]
        cap = options["softcap"]
        scores = cap * torch.tanh(scores / cap) if cap else scores
        rows.append(scores.softmax(-1) @ values)
    return torch.cat(rows, dim=2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["causal", "window", "softcap", "all keys"])
def test_mirrored_shards_of_queries_make_up_the_whole(name: str, dtype: torch.dtype) -> None:
    """Three ranks over six chunks of two: each has a chunk of queries and its mirror image."""
    options = {"scale": 0.3, **OPTIONS[name]}
    q, k, v, do = _attention_operands(4, 2, 12)
    exact = [x.requires_grad_() for x in (q, k, v)]
    summed = [torch.zeros_like(x) for x in exact]
    for rank in range(3):
        start, tail = 2 * rank, 2 * (5 - rank)
        places = [start, start + 1, tail, tail + 1]
        want = _attended(*exact, places, **options)
        wanted = torch.autograd.grad(want, exact, do[:, :, places])
        part, keys, values, d_part = (
            x.detach().to(dtype) for x in (q[:, :, places], k, v, do[:, :, places])
        )
        both = {"start": start, "tail": tail, **options}
        o, lse = kernels.attention(part, keys, values, **both)
        torch.testing.assert_close(o.double(), want.detach(), **LOOSE[dtype])
        found = kernels.attention_backward(d_part, part, keys, values, o, lse, **both)
        torch.testing.assert_close(found[0].double(), wanted[0][:, :, places], **LOOSE[dtype])
        for a, b in zip(found[1:], wanted[1:], strict=True):
            torch.testing.assert_close(a.double(), b, **LOOSE[dtype])
        summed = [a + b for a, b in zip(summed, wanted, strict=True)]
    plain = torch.autograd.grad(_plain_attention(*exact, **options)[0], exact, do)
    for a, b in zip(summed, plain, strict=True):  # the oracle is right: ranks make up the whole
        torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("window", [1, 2, 4, 5])
def test_shards_with_a_halo_of_keys_make_up_the_whole(window: int, dtype: torch.dtype) -> None:
    """Three ranks of four places: each sees its keys and the window - 1 before them, the first none
    before. Shares in a halo are the neighbour's; all summed, they make up the whole."""
    options = {"scale": 0.3, "causal": True, "window": window, "softcap": 0.0}
    q, k, v, do = _attention_operands(4, 2, 12)
    exact = [x.requires_grad_() for x in (q, k, v)]
    want = _attended(*exact, list(range(12)), **options)
    wanted = torch.autograd.grad(want, exact, do)
    found = [torch.zeros_like(x) for x in exact]
    for first in (0, 4, 8):
        own, reach = slice(first, first + 4), slice(max(0, first - window + 1), first + 4)
        part, d_part = (x.detach()[:, :, own].to(dtype) for x in (q, do))
        keys, values = (x.detach()[:, :, reach].to(dtype) for x in (k, v))
        given = {"start": window - 1, **options}
        o, lse = kernels.attention(part, keys, values, **given)
        torch.testing.assert_close(o.double(), want.detach()[:, :, own], **LOOSE[dtype])
        grads = kernels.attention_backward(d_part, part, keys, values, o, lse, **given)
        for total, grad, where in zip(found, grads, (own, reach, reach), strict=True):
            total[:, :, where] += grad
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, **LOOSE[dtype])


def test_backends_are_chosen_by_what_they_can_do() -> None:
    q = torch.empty(1, 2, 8, 8)
    assert backend_of(q, True, 0, 0.0) == backend_of(q, True, 8, 0.0) == "cpu_flash"
    assert backend_of(q.double(), True, 0, 0.0) == "reference"
    assert backend_of(q, True, 4, 0.0) == backend_of(q, True, 0, 5.0) == "reference"
    assert backend_of(q, False, 0, 0.0) == "cpu_flash"
    assert backend_of(q, False, 8, 0.0) == backend_of(q, False, 0, 5.0) == "reference"


PRIVATE = {
    "_scaled_dot_product_flash_attention_for_cpu": (
        "query key value dropout_p is_causal attn_mask scale",
        ["output", "logsumexp"],
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        "grad_out query key value out logsumexp dropout_p is_causal attn_mask scale",
        ["", "", ""],
    ),
    "_scaled_dot_product_cudnn_attention": (
        "query key value attn_bias compute_log_sumexp dropout_p is_causal return_debug_mask scale",
        ["output", "logsumexp"],
    ),
    "_scaled_dot_product_cudnn_attention_backward": (
        "grad_out query key value out logsumexp philox_seed philox_offset attn_bias cum_seq_q "
        "cum_seq_k max_q max_k dropout_p is_causal scale",
        ["", "", ""],
    ),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_the_private_ops_have_the_arguments_that_attention_gives(name: str) -> None:
    arguments, results = PRIVATE[name]
    schema = getattr(torch.ops.aten, name).default._schema
    assert [a.name for a in schema.arguments] == arguments.split()
    if results[0]:
        assert [r.name for r in schema.returns][: len(results)] == results
    else:
        assert len(schema.returns) == len(results)


# Linear, embedding


def test_linear_and_its_gradients_are_those_of_autograd() -> None:
    x, w, dy = _randn(2, 3, 5), _randn(4, 5), _randn(2, 3, 4)
    exact = [t.clone().requires_grad_() for t in (x, w)]
    y = torch.nn.functional.linear(*exact)
    dx, dw = torch.autograd.grad(y, exact, dy)
    torch.testing.assert_close(kernels.linear(x, w), y.detach(), **EXACT)
    torch.testing.assert_close(kernels.linear_input_grad(dy, w), dx, **EXACT)
    torch.testing.assert_close(kernels.linear_weight_grad(dy, x), dw, **EXACT)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("wide", [False, True])
def test_a_weight_gradient_is_added_where_it_stands(compiled: bool, wide: bool) -> None:
    """Into a view of a flat bucket, of the type of its operands or of a wider one."""
    dtype = torch.float32 if wide else torch.float64
    dy, x = _randn(2, 3, 4).to(dtype), _randn(2, 3, 5).to(dtype)
    flat = _randn(3 + 4 * 5)
    before, grad = flat.clone(), flat[3:].view(4, 5)

    def add(grad: torch.Tensor, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        kernels.add_linear_weight_grad(grad, dy, x)
        return dy + 1

    run = torch.compile(add, fullgraph=True, dynamic=False) if compiled else add
    torch.testing.assert_close(run(grad, dy, x), dy + 1)
    want = before[3:].view(4, 5) + kernels.linear_weight_grad(dy, x).double()
    torch.testing.assert_close(grad, want, **(LOOSE[dtype] if wide else EXACT))
    assert torch.equal(flat[:3], before[:3])


def test_copies_of_the_runtime_share_one_op_that_outlives_them() -> None:
    """As a process does that loads one program after another."""
    path = Path(str(opaque_file.__file__))
    held = vars(sys.modules["meshwright_runtime"])["add_linear_weight_grad"]
    for number in range(2):
        spec = importlib.util.spec_from_file_location(f"copy_{number}", path)
        assert spec is not None and spec.loader is not None
        copy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copy)
        assert copy._defined(_add_linear_weight_grad, print, ()) is held
        del copy, spec
    gc.collect()
    grad = torch.zeros(4, 5)
    kernels.add_linear_weight_grad(grad, torch.ones(2, 4), torch.ones(2, 5))
    assert torch.equal(grad, torch.full((4, 5), 2.0))


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_embedding_shards_sum_to_the_whole(shards: int) -> None:
    w, ids, dy = _randn(8, 3), torch.randint(8, (2, 6)), _randn(2, 6, 3)
    exact = w.clone().requires_grad_()
    y = torch.nn.functional.embedding(ids, exact)
    (dw,) = torch.autograd.grad(y, exact, dy)
    rows = 8 // shards
    starts = [rows * rank for rank in range(shards)]
    parts = [kernels.embedding(ids, w[s : s + rows], s, 8) for s in starts]
    torch.testing.assert_close(torch.stack(parts).sum(0), y.detach(), **EXACT)
    grads = [kernels.embedding_weight_grad(dy, ids, s, rows) for s in starts]
    torch.testing.assert_close(torch.cat(grads), dw, **EXACT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("sums", [torch.float32, None], ids=["wide", "as made"])
def test_an_embedding_of_few_ids_learns_as_under_torch(
    dtype: torch.dtype, sums: torch.dtype | None
) -> None:
    """Thousands of rows of one id: where each is rounded as it is added, most of them are lost."""
    w, ids = _randn(8, 3, dtype=dtype), torch.randint(2, (1, 8192))
    dy = torch.rand(1, 8192, 3).to(dtype)
    exact = w.double().requires_grad_()
    (wanted,) = torch.autograd.grad(torch.nn.functional.embedding(ids, exact), exact, dy.double())
    grad = torch.ones(8, 3, dtype=sums or dtype)
    kernels.add_embedding_weight_grad(grad, dy, ids, 0, 8)
    made = kernels.embedding_weight_grad(dy, ids, 0, 8)
    assert made.dtype == dtype
    for found, sum_of in ((grad, 1 + wanted), (made, wanted)):
        share = max(torch.finfo(found.dtype).eps, 1e-5)
        torch.testing.assert_close(found.double(), sum_of, rtol=share, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_columns_of_few_ids_add_the_rows_of_each(dtype: torch.dtype) -> None:
    """As on a GPU. Ids outside of the rows that a rank holds add nothing."""
    rows, index = _randn(4096, 3).to(dtype), torch.randint(-4, 12, (4096,))
    grad = torch.ones(8, 3, dtype=dtype)
    add_in_columns(grad, rows, index)
    here = (index >= 0) & (index < 8)
    sums = torch.ones(8, 3, dtype=torch.float64).index_add_(0, index[here], rows[here].double())
    share, near = {2: (1e-2, 0.1), 4: (1e-5, 1e-4), 8: (1e-12, 1e-11)}[dtype.itemsize]
    torch.testing.assert_close(grad.double(), sums, rtol=share, atol=near)


# Linear + cross-entropy


def _cross_entropy_case(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    x, w = _randn(2, 5, 6, dtype=dtype), _randn(12, 6, dtype=dtype)
    labels = torch.randint(12, (2, 5))
    labels[0, 1] = labels[1, 4] = -100
    kind = torch.promote_types(dtype, torch.float32)
    return x, w, labels, torch.randn(2, 5, dtype=kind), torch.randn(2, 5, dtype=kind)


def _plain_cross_entropy(
    x: Tensor, w: Tensor, labels: Tensor, softcap: float
) -> tuple[Tensor, Tensor]:
    logits = x @ w.t()
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    picked = logits.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return logits.logsumexp(-1), torch.where(labels == -100, 0.0, picked)


@pytest.mark.parametrize(("dtype", "tokens"), [(torch.bfloat16, 4), (torch.float32, 2)], ids=str)
def test_a_chunk_of_half_precision_has_tokens_enough_where_the_device_asks_for_them(
    dtype: torch.dtype, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy_file, "CHUNK_ELEMENTS", 24)
    monkeypatch.setattr(cross_entropy_file, "LEAST_TOKENS", {"cpu": 4})
    w = torch.ones(12, 6, dtype=dtype)
    assert cross_entropy_file._chunk(10, w) == tokens
    assert cross_entropy_file._chunk(3, w) == min(3, tokens)


@pytest.mark.parametrize("dtype", LOOSE, ids=str)
@pytest.mark.parametrize(
    ("shards", "softcap", "chunk"), list(itertools.product((1, 3), (0.0, 2.0), (1, 24, 2**20)))
)
@pytest.mark.parametrize("rows_of_a_tile", (1, 5))
def test_cross_entropy_over_vocabulary_shards_is_the_plain_formula(
    rows_of_a_tile: int,
    shards: int,
    softcap: float,
    chunk: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cross_entropy_file, "CHUNK_ELEMENTS", chunk)
    monkeypatch.setattr(cross_entropy_file, "ROWS", {"cpu": rows_of_a_tile})
    x, w, labels, dlse, dpicked = _cross_entropy_case(dtype)
    exact = [t.double().requires_grad_() for t in (x, w)]
    want = _plain_cross_entropy(*exact, labels, softcap)
    wanted = torch.autograd.grad(want, exact, (dlse.double(), dpicked.double()))
    rows = 12 // shards
    pieces = [(w[s : s + rows], s) for s in range(0, 12, rows)]
    forward = [
        kernels.linear_cross_entropy(x, part, labels, softcap=softcap, start=s)
        for part, s in pieces
    ]
    lse = torch.stack([f[0] for f in forward]).logsumexp(0)
    picked = torch.stack([f[1] for f in forward]).sum(0)
    found = [
        kernels.linear_cross_entropy_backward(
            dlse, dpicked, x, part, labels, lse, softcap=softcap, start=s
        )
        for part, s in pieces
    ]
    dx = torch.stack([f[0].double() for f in found]).sum(0)
    dw = torch.cat([f[1] for f in found])
    close = {**LOOSE[dtype], "atol": 10 * LOOSE[dtype]["atol"]}
    torch.testing.assert_close(lse.double(), want[0].detach(), **close)
    torch.testing.assert_close(picked.double(), want[1].detach(), **close)
    torch.testing.assert_close(dx, wanted[0], **close)
    torch.testing.assert_close(dw.double(), wanted[1], **close)
    assert bool((picked[labels == -100] == 0).all())
    for (part, s), made, gradients in zip(pieces, forward, found, strict=True):
        *same, logits = kernels.linear_cross_entropy_keeping(
            x, part, labels, softcap=softcap, start=s
        )
        torch.testing.assert_close(same, list(made))
        assert logits.dtype == dtype and logits.shape == (2, 5, rows)
        again = kernels.linear_cross_entropy_backward(
            dlse, dpicked, x, part, labels, lse, logits, softcap=softcap, start=s
        )
        torch.testing.assert_close(again, gradients)
    for kind in (dtype, torch.float64):  # of the operands' type, and as wide gradients are
        grad = torch.ones_like(pieces[0][0], dtype=kind)
        given = dlse, dpicked, x, pieces[0][0], labels, lse
        added = kernels.add_linear_cross_entropy_backward(grad, *given, softcap=softcap, start=0)
        torch.testing.assert_close(added, found[0][0])
        torch.testing.assert_close(grad.double(), 1 + wanted[1][:rows], **close)


@pytest.mark.long
def test_compiled_cross_entropy_holds_the_gradient_of_one_chunk_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text that torch.compile writes, where gradients are summed in another type than w's, and
    where w is filled up."""
    from torch._inductor.utils import run_and_get_code

    rows, vocab = 16, 4090
    monkeypatch.setattr(cross_entropy_file, "CHUNK_ELEMENTS", 8 * vocab)
    monkeypatch.setattr(cross_entropy_file, "ROWS", {"cpu": 16})
    x, w = torch.randn(rows, 16, dtype=torch.bfloat16), torch.randn(vocab, 16, dtype=torch.bfloat16)
    labels, grad, ones = torch.randint(vocab, (rows,)), torch.zeros(vocab, 16), torch.ones(rows)
    logits = x @ w.t()
    backward = partial(kernels.add_linear_cross_entropy_backward, softcap=0.0, start=0)
    given = (ones, -ones, x, w, labels, logits.float().logsumexp(1), logits)
    wanted = torch.zeros_like(grad)
    dx = backward(wanted, *given)
    compiled = torch.compile(backward, fullgraph=True, dynamic=False)
    with torch.no_grad():
        found, (text,) = run_and_get_code(compiled, grad, *given)
    torch.testing.assert_close(found, dx, **LOOSE[torch.bfloat16])
    torch.testing.assert_close(grad, wanted, **LOOSE[torch.bfloat16])
    assert _most_alive(text, 4096) == 1
    assert text.count("filled_up.default(") == 1 and "empty_strided_cpu((4096, 16)" not in text


def _most_alive(text: str, columns: int) -> int:
    """Most buffers [any, columns] that generated text holds at once, the parameter's aside."""
    made = rf"(buf\d+) = empty_strided_cpu\(\(\d+, {columns}\)"
    alive: set[str] = set()
    most = 0
    for line in text[text.index("def call(") :].splitlines():
        if (found := re.search(made, line)) is not None:
            alive.add(found[1])
        if (found := re.search(r"(buf\d+) = (buf\d+); del \2  # reuse", line)) is not None:
            alive = {found[1] if name == found[2] else name for name in alive}
        elif (found := re.match(r"\s*del (buf\d+)", line)) is not None:
            alive.discard(found[1])
        most = max(most, len(alive))
    return most
