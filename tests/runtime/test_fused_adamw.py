"""The launch that updates all of a rank's weights: against torch's AdamW and the rounding of
rounding.py, over runs of any dtypes, sizes, groups and cuts."""

import pytest
import triton_runs

MANY = """
from types import SimpleNamespace
import torch
from torch.optim.adamw import adamw
from meshwright.runtime.engine.boxes import Cut, pieces_of
from meshwright.runtime.engine.layout import Param
from meshwright.runtime.optimizers.fused_adamw import FusedAdamW
from meshwright.runtime.optimizers.options import Group, OptimizerOptions
from meshwright.runtime.optimizers.rounding import key_of, stochastic
from meshwright.runtime.optimizers.rule import Part, Run

device = "cuda" if torch.cuda.is_available() else "cpu"
bf16, f32 = torch.bfloat16, torch.float32
STATES = "exp_avg", "exp_avg_sq"
COUNT, SCALE, LR = 7, 0.25, 0.01
torch.manual_seed(0)

def flats(n, kind, grad):
    own = 1e-3 * torch.randn(n), 1e-5 * torch.rand(n)
    kinds = kind, grad, kind, kind
    given = torch.randn(n), 1e-2 * torch.randn(n), *own
    return [x.to(k).to(device) for x, k in zip(given, kinds, strict=True)]

def bucket_of(params, kind, grad, copied, once):
    # params: (name, shape, cuts, first, last, group): elements of the local tensor in this shard
    sizes = [last - first for *_, first, last, _ in params]
    w, g, m, v = flats(sum(sizes), kind, grad)
    runs, at = [], 0
    for (name, shape, cuts, first, last, group), n in zip(params, sizes, strict=True):
        cut = [Cut(dim, outer, rank, ranks) for dim, outer, rank, ranks in cuts]
        whole = list(shape)
        for c in cut:
            whole[c.dim] *= c.n
        param = Param(name, tuple(whole), (), "normal(0.0, 1.0)")
        parts = tuple(Part(param, 0, p) for p in pieces_of(shape, tuple(cut), first, last))
        part = slice(at, at + n)
        states = dict(zip(STATES, (m[part], v[part]), strict=True))
        runs.append(Run("", group, at, at + n, parts, w[part], g[part], states))
        at += n
    shard = w.to(bf16) if copied else w
    return SimpleNamespace(shard=shard, clears_its_shard=once, runs=runs, before=shard.clone())

def indices(run):
    found = torch.full((run.stop - run.start,), -1)
    for part in run.parts:
        shape = torch.Size(part.param.shape)
        index = torch.arange(shape.numel()).view(shape)
        box = part.piece.box
        for dim, (low, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
            index = index.narrow(dim, low, size)
        part.view(found).copy_(index)
    assert (found >= 0).all()
    return found

def check(buckets, rounding):
    options = OptimizerOptions(rounding=rounding, seed=3)
    before = [[[x.clone() for x in (r.weights, r.grad, *r.states.values())] for r in b.runs]
              for b in buckets]
    fused = FusedAdamW([(b, b.runs) for b in buckets], options)
    fused.update(LR, COUNT, SCALE)
    assert fused.clears == all(b.clears_its_shard for b in buckets)
    for b, olds in zip(buckets, before, strict=True):
        for run, old in zip(b.runs, olds, strict=True):
            w, g, m, v = [x.double() for x in old]
            step = [torch.full((), COUNT - 1.0, device=device)]
            adamw([w], [g * SCALE], [m], [v], [], step, fused=True, amsgrad=False, maximize=False,
                  beta1=0.9, beta2=0.95, lr=LR * run.group.lr_scale, eps=1e-8,
                  weight_decay=run.group.weight_decay)
            found = run.weights, *run.states.values()
            rounds = rounding == "stochastic" and run.weights.dtype is bf16
            for n, (x, y, o) in enumerate(zip(found, (w, m, v), (old[0], *old[2:]), strict=True)):
                # Half a unit in the last place; the interpreter cuts bits off.
                unit = 2.0**-8 if device == "cuda" else 2.0**-7
                unit = 2.0**-7 if rounds and n == 0 else unit
                limit = 2e-6 if x.dtype is f32 else unit
                size = torch.maximum(y.abs(), o.double().abs()).clamp_min(1e-6)
                assert ((x.double() - y).abs() / size).max() <= limit * 1.01, (n, x.dtype)
            if rounds:
                key = key_of(3, COUNT, run.parts[0].param.name)
                want = stochastic(w.float().cpu(), indices(run), key)
                off = (want != run.weights.cpu()).double().mean()
                # Float32 sums in another order may tip a choice.
                assert off < 2e-3, (run.parts[0].param.name, off)
                assert run.stop == 1 + run.start or run.weights.cpu().ne(w.to(bf16).cpu()).any()
            if fused.clears:
                assert not run.grad.any()
            else:
                assert torch.equal(run.grad, old[1])
        if b.shard.data_ptr() != b.runs[0].weights.data_ptr():
            masters = torch.cat([r.weights for r in b.runs])
            unit = 2.0**-8 if device == "cuda" else 2.0**-7
            assert ((b.shard.float() - masters).abs() <= unit * masters.abs()).all()
            assert b.shard.ne(b.before).any()

plain, other = Group("", 1.0, 0.1), Group("", 0.5, 0.0)
large = [("a", (130, 140), (), 0, 18200, plain), ("n", (13,), (), 0, 13, other),
         ("b", (64, 64), (), 1000, 4096, plain)]
cut = [("rows", (16, 40), ((0, 1, 1, 2),), 0, 640, plain),
       ("columns", (16, 40), ((1, 1, 2, 3),), 50, 600, plain),
       ("fused", (16, 24), ((1, 3, 1, 2),), 10, 380, other),
       ("deep", (4, 6, 8), ((1, 1, 1, 2),), 0, 192, plain), ("one", (), (), 0, 1, other)]
for once in (True, False):
    check([bucket_of(large, f32, f32, True, True), bucket_of(cut, f32, f32, True, once)], "nearest")
    check([bucket_of(large, bf16, bf16, False, once), bucket_of(cut, f32, f32, False, True)],
          "nearest")
    check([bucket_of(large, bf16, f32, False, True), bucket_of(cut, bf16, bf16, False, once)],
          "stochastic")
check([bucket_of(cut, f32, f32, False, True), bucket_of(large, bf16, bf16, False, True)],
      "stochastic")
print("equal")
"""

VECTORS = """
import re
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from meshwright.runtime.optimizers.triton_adamw import SPAN, _fused_kernel as kernel

names, target = kernel.arg_names, GPUTarget("cuda", 90, 32)

def element_by_element(weight, grad, copies, rounds, unit):
    said = {"COPIES": copies, "ROUNDS": rounds, "CLEARS": True, "STRIDED": False,
            "UNIT": unit, "COLUMNS": len(SPAN), "SIZE": 4096, "BLOCK": 1024}
    tensors = {"weights": weight, "grad": grad, "exp_avg": weight, "exp_avg_sq": weight,
               "copy": "*bf16", "chunks": "*i32", "spans": "*i64", "rates": "*fp32",
               "keys": "*i64"}
    signature = {n: "constexpr" if n in said else tensors.get(n, "fp32") for n in names}
    source = ASTSource(
        fn=kernel, signature=signature,
        constexprs={(names.index(n),): value for n, value in said.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in tensors},
    )
    text = compile(source, target=target).asm["ptx"]
    stores = re.findall(r"st[.]global[^ ]*", text)
    assert stores
    return any(".v4." not in store for store in stores)

for kind in (("*fp32", "*fp32", True, False), ("*bf16", "*bf16", False, False),
             ("*bf16", "*bf16", False, True), ("*bf16", "*fp32", False, True)):
    assert not element_by_element(*kind, 16), kind
    assert element_by_element(*kind, 1), kind
print("equal")
"""


@triton_runs.on_linux
def test_the_launch_moves_vectors_where_all_is_aligned() -> None:
    """Compiled for an H100, which this machine need not have."""
    triton_runs.run(VECTORS)


@triton_runs.on_linux
def test_the_launch_interpreted_equals_torch() -> None:
    triton_runs.run_interpreted(MANY)


@pytest.mark.gpu
def test_the_launch_equals_torch() -> None:
    triton_runs.run(MANY)
