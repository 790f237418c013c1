"""The plain model, eager on one device on the whole global batch: what every plan must equal.

With float32 masters the plain way is torch's own: forward and backward in bf16, gradients cast to
float32 for an optimizer over float32 copies, which are cast back.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from equivalence.cases import IGNORED, Case
from equivalence.references import reference
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from meshwright.ir.dtypes import TORCH_NAMES
from meshwright.ir.plan import Plan
from meshwright.ir.sizes import Shape, evaluate
from meshwright.proof.draws import Site, drawn
from meshwright.runtime.engine.initial import initial_value
from meshwright.runtime.engine.inputs import step_draws


@dataclass(frozen=True)
class Outcome:
    """losses, norms: one a step. grads: of the first step, before clipping. params: at the end."""

    losses: list[float]
    norms: list[float]
    grads: dict[str, Tensor]
    params: dict[str, Tensor]


class Widened(TorchFunctionMode):
    """Casts to any float become casts to float64, as capture has it for models in float64; what has
    no dtype of its own has that one."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        func = Tensor.double if func in (Tensor.float, Tensor.half, Tensor.bfloat16) else func
        wide = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **wide)


def _wide(value: Any) -> Any:
    narrow = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if narrow else value


MOVED = 1e-3  # what a step moves a router's bias by, if nothing is said
_OF_MASKS = 1e6  # what is larger hides scores


class Shaken(TorchDispatchMode):
    """Moves each element that an op makes, up or down, by the rounding of the largest one.

    What comes out differs by what the module makes of rounding (stochastic arithmetic). The largest
    counts, as a small element may be the difference of large ones within an op; but for what fills
    masks, such as the least number of a dtype. A 0 stays.
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws = torch.Generator().manual_seed(0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if any(given.alias_info for given in func._schema.returns):  # a view, or written in place
            return found
        return tree_map_only(Tensor, self._moved, found)

    def _moved(self, made: Tensor) -> Tensor:
        if not made.is_floating_point() or not made.numel():
            return made
        sizes = made.abs().nan_to_num(0.0)
        largest = sizes.masked_fill(sizes > _OF_MASKS, 0.0).max()
        signs = torch.randint(2, made.shape, generator=self.draws) * 2 - 1
        unit = largest * torch.finfo(made.dtype).eps
        return torch.where(made == 0, made, made + signs * unit)


def plain_run(
    build: Callable[[], nn.Module],
    plan: Plan,
    data: list[tuple[Tensor, Tensor]],
    case: Case,
    wide: bool = False,
    drawn_on: str = "cpu",
    shaken: bool = False,
    sites: Mapping[int, Site] | None = None,
) -> Outcome:
    """Train for one step a batch from the weights that the plan's recipes and the seed give.

    wide: from the same weights, in float64. drawn_on: kind of device whose generator gives the
    weights; those of a GPU give others. shaken: each op's results are moved by a unit of
    rounding. sites: of its dropouts, each of which is replaced by the draw that the run's seed, the
    step, its number, the row and the element give.
    """
    module = _built(build, torch.float64 if wide else getattr(torch, TORCH_NAMES[plan.dtype]))
    params = dict(module.named_parameters())
    _initialise(params, plan, case.seed, torch.device(drawn_on))
    for name, param in module.named_parameters(remove_duplicate=False):  # by any name of a tied one
        if any(fnmatchcase(name, pattern) for pattern in case.freeze):
            param.requires_grad_(False)
    trained = {n: p for n, p in params.items() if p.requires_grad}
    planned = {p.name for p in plan.params}
    if plan.precision == "master" and not wide:
        trained = {n: nn.Parameter(p.detach().float()) for n, p in trained.items()}
    update = reference(case.options, trained, _tables(module))
    losses, norms = [], []
    grads: dict[str, Tensor] = {}
    choices = Choices(module, plan.router_biases())
    for step, ((tokens, labels), rate) in enumerate(zip(data, case.rates, strict=True)):
        module.zero_grad()
        key, places = step_draws(case.seed, step), torch.arange(len(tokens))
        with Shaken() if shaken else nullcontext(), drawn(sites or {}, places, case.seq, key):
            loss = _loss(module, tokens, labels)
            loss.backward()
        for name, param in trained.items():
            own = params[name].grad
            assert own is None or name in planned, f"{name} has a gradient and is not planned"
            param.grad = None if own is None else own.to(param.dtype)
        grads = grads or {n: p.grad.clone() for n, p in trained.items() if p.grad is not None}
        grads |= {n: x for n, x in choices.excess().items() if n not in grads}
        losses.append(loss.item())
        norms.append(_clip(list(trained.values()), case.clip))
        update(rate)
        for name, param in trained.items():
            params[name].data.copy_(param)
        for name, excess in choices.excess().items():
            params[name].data -= MOVED * excess.sign()
        choices.seen.clear()
    return Outcome(losses, norms, grads, {n: p.detach() for n, p in params.items() if n in planned})


class Choices:
    """What the experts of a module are called with in a step, by their router's bias."""

    def __init__(self, module: nn.Module, biases: set[str]) -> None:
        self.seen: dict[str, list[Tensor]] = {}
        for bias in biases:
            layer = module.get_submodule(bias.rpartition(".")[0])
            assert layer.chooses_by_bias
            layer.core.register_forward_pre_hook(
                lambda core, given, bias=bias: self.seen.setdefault(bias, []).append(given[2])
            )
            self.experts = layer.correction.numel()

    def excess(self) -> dict[str, Tensor]:
        """By bias, E times the choices of an expert less all; both its products are called."""
        found = {}
        for name, chosen in self.seen.items():
            ids = torch.cat([given.flatten() for given in chosen[::2]])
            counts = torch.stack([(ids == expert).sum() for expert in range(self.experts)])
            found[name] = (self.experts * counts - ids.numel()).double()
        return found


def _built(build: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    with _default(dtype):
        return build().train()


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _initialise(
    params: dict[str, nn.Parameter], plan: Plan, seed: int, device: torch.device
) -> None:
    dtype = getattr(torch, TORCH_NAMES[plan.dtype])
    planned = {p.name for p in plan.params}
    # What forward never reads is not in the plan; PyTorch gives it no gradient (plain_run asserts).
    assert planned <= set(params), f"the plan has {planned - set(params)} besides"
    stored = {digest: _decode(*row) for digest, *row in plan.constants}
    for param in plan.params:
        shape = tuple(evaluate(size, {}) for size in param.shape)
        value = initial_value(
            param.name, shape, param.init, seed=seed, dtype=dtype, device=device, stored=stored
        )
        params[param.name].data.copy_(value)


def _decode(dtype: str, shape: Shape, data: str) -> Tensor:
    raw = bytearray(base64.b64decode(data))
    sizes = [evaluate(size, {}) for size in shape]
    return torch.frombuffer(raw, dtype=getattr(torch, TORCH_NAMES[dtype])).reshape(sizes)


def _tables(module: nn.Module) -> set[str]:
    """Names of embeddings' parameters and of the head's."""
    found = {n for n, m in module.named_modules() if isinstance(m, nn.Embedding)}
    return {
        name
        for name, _ in module.named_parameters()
        if name.rpartition(".")[0] in found or "lm_head" in name
    }


def _loss(module: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over the unignored labels of the global batch."""
    wide = next(module.parameters()).dtype is torch.float64
    if wide:
        with _default(torch.float64), Widened():
            out = module(tokens)
    else:
        out = module(tokens)
    out = out[0] if isinstance(out, tuple) else out
    load = out.get("router_load") if isinstance(out, dict) else None
    logits = out["logits"] if isinstance(out, dict) else getattr(out, "logits", out)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / (labels != IGNORED).sum() + (0.0 if load is None else _balance(load))


def _balance(load: Tensor) -> Tensor:
    """The loss of routers of a whole batch: by expert the mean choices times the mean
    probability, [B, 2, E] being sums over tokens."""
    choices, probabilities = load[:, 0].sum(0), load[:, 1].sum(0)
    tokens = choices.sum()
    return torch.dot(choices / tokens, probabilities / tokens)


def _grad(param: nn.Parameter) -> Tensor:
    return torch.zeros_like(param) if param.grad is None else param.grad


def _clip(params: list[nn.Parameter], clip: float) -> float:
    """Scale all gradients to the norm `clip` if theirs is larger; returns the norm before."""
    norm = float(sum(_grad(p).double().square().sum() for p in params)) ** 0.5
    if clip / (norm + 1e-6) < 1:  # torch.nn.utils.clip_grad_norm_
        for param in params:
            if param.grad is not None:
                param.grad.mul_(clip / (norm + 1e-6))
    return norm
