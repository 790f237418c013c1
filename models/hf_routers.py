"""The loss of routers that stock classes of `transformers` add to that of their labels.

With `output_router_logits = true` a class makes it in forward, by a function of its file that it
calls as a global: of the logits [B S, E] of all its layers a number of the whole batch. A plan
computes some rows at a time, so that for the time of a forward another function stands there,
which leaves the load of the batch's rows: models/router_load.py says what that is.

Routers that draw their experts at random, as those of Phi-3.5-MoE do in training (SparseMixer, Liu
et al. 2024, arXiv 2409.12136, section 3), are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import Tensor, nn

from .errors import ModelError
from .router_load import RouterLoad, balance_loss

Given: TypeAlias = Mapping[str, Any]

_FUNCTION = "load_balancing_loss_func"
_DRAWS = "sparsemixer"  # a function that draws experts
_FACTORS = ("router_aux_loss_coef", "aux_loss_coef")


def check_routers(spec: str, model: nn.Module) -> None:
    """Raise ModelError where the routers of a class draw experts. spec: what the user called it."""
    for part in model.modules():
        if _DRAWS in vars(sys.modules[type(part).__module__]):
            raise ModelError(
                f"{spec}: in training the routers of {type(model).__name__} draw experts at random "
                f"({_DRAWS}); a program draws nothing in forward but dropout, so take a class "
                "whose routers take the best ones"
            )


def router_factor(model: Any) -> float:
    """Return what a class multiplies the loss of its routers with; 0 where it makes none."""
    text = model.config.get_text_config(decoder=True)
    if not getattr(text, "output_router_logits", False):
        return 0.0
    holders = (model,) if text is model.config else (model, text)
    found = (getattr(holder, name, None) for holder in holders for name in _FACTORS)
    return next((float(factor) for factor in found if factor), 0.0)


def called(
    model: nn.Module, core: RouterLoad | None, given: Given, factor: float
) -> Tensor | dict[str, Tensor]:
    """Call a class; return its logits, and what it makes of its routers where `factor` is not 0:
    their load by our core, or their loss by the class itself.

    given: what the class takes, `input_ids` [B, S] among it.
    """
    if not factor:
        return model(**given, use_cache=False).logits
    if core is None:
        return _with_router_loss(model, given, factor)
    return _with_router_load(model, core, given, factor)


def _with_router_load(
    model: nn.Module, core: RouterLoad, given: Given, factor: float
) -> Tensor | dict[str, Tensor]:
    """Call a class with our function in the place of its own; return its logits and the load of its
    routers, or logits alone where the class makes no loss of them."""
    loads: list[Tensor] = []

    def load(
        gate_logits: Any,
        num_experts: int | None = None,
        top_k: int = 2,
        attention_mask: Tensor | None = None,
        *more: Any,
    ) -> Any:
        if not isinstance(gate_logits, tuple) or attention_mask is not None or more:
            got = f"{type(gate_logits).__name__}, attention_mask {attention_mask is not None}"
            raise ModelError(
                f"{type(model).__name__} makes the loss of its routers of a {got}; a plan knows "
                "that of the logits of all tokens alone, so set output_router_logits to false"
            )
        found = None
        for logits in gate_logits:
            of_rows = logits.view(*given["input_ids"].shape, logits.shape[-1])
            # The library's loss counts choices, of which a token has top_k.
            own = core(of_rows, top_k, factor * top_k * (num_experts or of_rows.shape[-1]))
            found = own if found is None else found + own
        assert found is not None
        loads.append(found)
        return balance_loss(found.detach())

    with _in_place_of_its_own(model, load):
        logits = model(**given, use_cache=False).logits
    return {"logits": logits, "router_load": loads[0]} if loads else logits


@contextmanager
def _in_place_of_its_own(model: nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    files = {sys.modules[type(part).__module__] for part in model.modules()}
    kept = [(vars(file), vars(file)[_FUNCTION]) for file in files if _FUNCTION in vars(file)]
    for names, _ in kept:
        names[_FUNCTION] = function
    try:
        yield
    finally:
        for names, own in kept:
            names[_FUNCTION] = own


def _with_router_loss(model: Any, given: Given, factor: float) -> dict[str, Tensor]:
    """Call a class as the library builds it; return its logits and the loss of its routers.

    The number is what the class's own loss has more than the loss of its labels; its gradient that
    of `factor` times what the class returns as `aux_loss`.
    """
    labels = given["input_ids"]
    out = model(**given, labels=labels, use_cache=False)
    sizes = {"vocab_size": model.config.get_text_config(decoder=True).vocab_size}
    more = out.loss - model.loss_function(logits=out.logits, labels=labels, **sizes)
    if getattr(out, "aux_loss", None) is not None:
        own = factor * out.aux_loss
        more = own + (more - own).detach()
    return {"logits": out.logits, "router_loss": more}
