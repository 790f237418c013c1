"""Initial values equal those of plain PyTorch: to the bit, in distribution, or they are refused."""

import gc

import pytest
import torch
from initial_cases import (
    DRAWN,
    DRAWN_MADE,
    KNOWN,
    KNOWN_MADE,
    REFUSED,
    Holder,
    Registered,
    Shared,
    deep_copies,
)
from torch import Tensor, nn

from meshwright.ir.capture import initialisers
from meshwright.ir.capture.export import capture
from meshwright.ir.capture.initialisers import Built, build_fake
from meshwright.ir.errors import CaptureError
from meshwright.runtime.engine.initial import initial_value

CPU = torch.device("cpu")
Cuts = tuple[tuple[int, int, int, int], ...]


def value(built: Built, name: str, dtype: torch.dtype, cuts: Cuts = ()) -> Tensor:
    shape = tuple(dict(built.module.named_parameters())[name].shape)
    return initial_value(
        name, shape, built.recipes[name], seed=1, dtype=dtype, device=CPU, shards=cuts,
        stored=built.stored,
    )  # fmt: skip


def plain(build, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return build()
    finally:
        torch.set_default_dtype(before)


def bits(values: Tensor) -> list[bytes]:
    return [values.dtype, values.shape, values.contiguous().reshape(-1).view(torch.uint8).tolist()]


def shards_agree(built: Built, dtype: torch.dtype, whole: Tensor) -> None:
    for dim in range(whole.dim()):
        for n in (2, 3):
            for rank in range(n) if whole.shape[dim] % n == 0 else ():
                shard = value(built, "w", dtype, ((dim, 1, rank, n),))
                assert bits(shard) == bits(whole.chunk(n, dim)[rank])


def _holders(changes: dict, makes: dict, shape: tuple[int, ...]) -> list:
    found = [pytest.param(None, c, shape, id=name) for name, c in changes.items()]
    return found + [pytest.param(m, None, shape, id=f"made {name}") for name, m in makes.items()]


@pytest.mark.parametrize(("make", "change", "shape"), _holders(KNOWN, KNOWN_MADE, (12, 6)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_known_values_are_equal_to_the_bit(make, change, shape, dtype) -> None:
    built = build_fake(lambda: Holder(make, change, shape), dtype)
    want = plain(lambda: Holder(make, change, shape), dtype).w.detach()
    found = value(built, "w", want.dtype)
    assert bits(found) == bits(want), built.recipes["w"]
    shards_agree(built, want.dtype, found)


@pytest.mark.parametrize("groups", [1, 2])
def test_dirac_is_equal_to_the_bit(groups: int) -> None:
    build = lambda: Holder(None, lambda w: nn.init.dirac_(w, groups), (4, 3, 5))  # noqa: E731
    assert bits(value(build_fake(build, torch.float32), "w", torch.float32)) == bits(build().w)


@pytest.mark.parametrize(("make", "change", "shape"), _holders(DRAWN, DRAWN_MADE, (480, 250)))
def test_random_values_are_equal_in_distribution(make, change, shape) -> None:
    """What two runs of PyTorch agree on is equal; the rest has the same quantiles."""
    build = lambda: Holder(make, change, shape)  # noqa: E731
    built = build_fake(build, torch.float32)
    found = value(built, "w", torch.float32)
    one, two = (plain(build, seed=seed).w.detach() for seed in (0, 1))
    fixed = (one == two) & (one == one[0, 0]) if change is DRAWN["bernoulli"] else one == two
    if fixed.float().mean() < 0.5 and not (
        one.unique().numel() < 10 or "clamp" in built.recipes["w"]
    ):
        assert torch.equal(found[_rows(fixed)], one[_rows(fixed)])
    for part in (slice(0, 40), slice(40, 240), slice(240, 480), slice(0, 480)):
        _same_quantiles(found[part], one[part])
    if "orthogonal" in built.recipes["w"]:
        torch.testing.assert_close(found.T @ found, one.T @ one, atol=1e-4, rtol=0)
    shards_agree(built, torch.float32, found)


def _rows(fixed: Tensor) -> Tensor:
    """Rows in which all is fixed."""
    return fixed.all(1)


def _same_quantiles(found: Tensor, want: Tensor) -> None:
    found, want = found.flatten().sort().values, want.flatten().sort().values
    places = torch.cat([found, want])
    shares = [torch.searchsorted(v, places, right=True) / v.numel() for v in (found, want)]
    # Kolmogorov-Smirnov: two samples of one distribution are further apart once in 10^5.
    assert (shares[0] - shares[1]).abs().max().item() < 2.5 * (2 / found.numel()) ** 0.5
    spread = want.std().item()
    assert abs(found.mean().item() - want.mean().item()) <= 6 * spread / found.numel() ** 0.5 + 1e-7
    assert abs(found.std().item() - spread) <= 0.05 * spread + 1e-7


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_recipe_gives_is_refused_with_its_name(name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(CaptureError, match=rf"param w: .*({message}).*"):
        build_fake(lambda: Holder(None, change, (12, 6)), torch.float32)


def test_nothing_seen_stays_without_a_recipe() -> None:
    assert build_fake(lambda: Holder(None, None, (3, 2)), torch.float32).recipes == {}


def test_parameters_of_one_draw_start_alike() -> None:
    built = build_fake(lambda: Shared(lambda a: a.clone() * 2 + 1), torch.float32)
    assert built.recipes["b"] == "normal(0.0, 1.0) mul(2.0) add(1.0) of(a)"
    a, b = (value(built, name, torch.float32) for name in "ab")
    assert torch.equal(a * 2 + 1, b)
    copies = build_fake(deep_copies, torch.float32)
    first, last = (value(copies, f"{n}.weight", torch.float32) for n in (0, 2))
    assert torch.equal(first, last)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda a: a.t() * 2, "is computed from the random values of a, in another shape"),
        (lambda a: a[:6].clone(), "is computed from the random values of a"),
        (lambda a: a.t(), "b shares the memory of a"),
        (lambda a: a[:6], "b shares the memory of a"),
    ],
)
def test_a_transform_of_another_parameter_is_refused(second, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        build_fake(lambda: Shared(second), torch.float32)


def test_a_parameter_filled_after_it_was_registered_stays_tied() -> None:
    built = build_fake(Registered, torch.float32)
    assert built.tied == {"a": "a", "b": "a"}
    assert bits(value(built, "a", torch.float32)) == bits(torch.full((12, 6), 0.2))


def test_more_values_than_a_plan_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialisers, "LIMIT_BYTES", 100)
    with pytest.raises(CaptureError, match="param w: values set by hand take 288 bytes.*is 100"):
        build_fake(lambda: Holder(None, KNOWN["eye"], (12, 6)), torch.float32)


class Model(nn.Module):
    """A decoder of two matrices and a scale set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.scale = nn.Parameter(torch.linspace(0, 1, 8))
        self.head = nn.Linear(8, 16, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens) * self.scale)


def test_values_set_by_hand_travel_with_a_line_that_says_so() -> None:
    captured = capture(Model, "model", "f32")
    (scale,) = (i for i in captured.graph.inputs_of("param") if i.ref == "scale")
    (constant,) = captured.constants
    assert scale.init == f"stored(#{constant[0]})"
    assert captured.warnings == (
        "initial values set by hand travel in the plan: 1 tensors, 32 bytes",
    )


def test_no_memory_of_a_parameter_outlives_the_capture() -> None:
    build_fake(lambda: nn.Linear(37, 4099), torch.float32)
    gc.collect()
    held = [o for o in gc.get_objects() if type(o) is Tensor and o.shape == (4099, 37)]
    assert not held
