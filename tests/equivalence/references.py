"""Optimizers over whole tensors: torch.optim where it has them, else the papers' formulas."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.runtime.optimizers.options import OptimizerOptions

Params = dict[str, nn.Parameter]
Step = Callable[[float], None]


def reference(options: OptimizerOptions, params: Params, tables: set[str]) -> Step:
    """A function of the rate that updates the parameters by their gradients.

    tables: names of embeddings and the head.
    """
    return _MAKERS[options.name](options, params, tables)


def _groups(options: OptimizerOptions, params: Params) -> list[dict[str, Any]]:
    """One torch.optim group a parameter: its decay, and its rate's factor."""
    groups = []
    for name, param in params.items():
        group = options.group_of(name, decays=param.ndim >= 2)
        groups.append(
            {"params": [param], "weight_decay": group.weight_decay, "scale": group.lr_scale}
        )
    return groups


def _torch(optimizer: torch.optim.Optimizer) -> Step:
    def step(lr: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        optimizer.step()

    return step


def _adamw(o: OptimizerOptions, params: Params, tables: set[str]) -> Step:
    groups = _groups(o, params)
    return _torch(torch.optim.AdamW(groups, betas=(o.beta1, o.beta2), eps=o.eps))


def _sgd(o: OptimizerOptions, params: Params, tables: set[str]) -> Step:
    return _torch(torch.optim.SGD(_groups(o, params), momentum=o.momentum, nesterov=o.nesterov))


def _adafactor(o: OptimizerOptions, params: Params, tables: set[str]) -> Step:
    return _torch(torch.optim.Adafactor(_groups(o, params)))


def _each(o: OptimizerOptions, params: Params, update: Callable[..., None]) -> Step:
    """Call update(param, grad, state, rate, decay, t) for each parameter."""
    states: dict[str, dict[str, Tensor]] = {name: {} for name in params}
    groups = {name: o.group_of(name, decays=p.ndim >= 2) for name, p in params.items()}
    done = 0

    @torch.no_grad()
    def step(lr: float) -> None:
        nonlocal done
        done += 1
        for name, param in params.items():
            if param.grad is None:  # as torch.optim does
                continue
            group = groups[name]
            rate = lr * group.lr_scale
            update(param, param.grad, states[name], rate, group.weight_decay, done)

    return step


def _lion(o: OptimizerOptions, params: Params, tables: set[str]) -> Step:
    def update(p: Tensor, g: Tensor, state: dict, lr: float, decay: float, t: int) -> None:
        m = state.get("m", torch.zeros_like(p))
        c = o.beta1 * m + (1 - o.beta1) * g
        p.copy_(p - lr * (torch.sign(c) + decay * p))
        state["m"] = o.beta2 * m + (1 - o.beta2) * g

    return _each(o, params, update)


def _schedule_free(o: OptimizerOptions, params: Params, tables: set[str]) -> Step:
    """Algorithm 1 of the paper with x, y and z as three tensors; the parameters hold y."""

    def update(y: Tensor, g: Tensor, state: dict, lr: float, decay: float, t: int) -> None:
        if not state:
            state.update(x=y.clone(), z=y.clone(), v=torch.zeros_like(y), squares=0.0)
        state["v"] = o.beta2 * state["v"] + (1 - o.beta2) * g * g
        rate = lr * math.sqrt(1 - o.beta2**t)
        state["z"] = state["z"] - rate * (g / (state["v"].sqrt() + o.eps) + decay * y)
        state["squares"] += rate**2
        share = rate**2 / state["squares"]
        state["x"] = (1 - share) * state["x"] + share * state["z"]
        y.copy_((1 - o.beta1) * state["z"] + o.beta1 * state["x"])

    return _each(o, params, update)


def _muon(o: OptimizerOptions, params: Params, tables: set[str]) -> Step:
    hidden = {n: p for n, p in params.items() if p.ndim == 2 and n not in tables}
    others = _adamw(o, {n: p for n, p in params.items() if n not in hidden}, tables)

    def update(p: Tensor, g: Tensor, state: dict, lr: float, decay: float, t: int) -> None:
        m = state["m"] = o.momentum * state.get("m", torch.zeros_like(p)) + (1 - o.momentum) * g
        x = (1 - o.momentum) * g + o.momentum * m
        x = x / max(x.norm(), 1e-7)
        for _ in range(5):
            a = x @ x.mT
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        scale = 0.2 * math.sqrt(max(p.shape))
        if o.muon_scale == "original":
            scale = math.sqrt(max(1, p.shape[0] / p.shape[1]))
        p.copy_((1 - lr * decay) * p - lr * scale * x)

    matrices = _each(o, hidden, update)

    def step(lr: float) -> None:
        others(lr)
        matrices(lr)

    return step


_MAKERS: dict[str, Callable[[OptimizerOptions, Params, set[str]], Step]] = {
    "adamw": _adamw,
    "sgd": _sgd,
    "lion": _lion,
    "schedule-free": _schedule_free,
    "muon": _muon,
    "adafactor": _adafactor,
}
