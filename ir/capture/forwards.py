"""The forwards that are traced: of a module, what the loss of a program is made of."""

import inspect
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import CaptureError
from ..inputs import Role, known_arguments, role_of
from .size_questions import Seen


def roles_of(module: nn.Module, name: str) -> dict[Role, str]:
    """Return the roles of what the forward takes, tokens first, by role the name of its parameter.

    Parameters with a default keep it. Raises CaptureError for one that no input of a step fills.
    """
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    parameters = list(inspect.signature(module.forward).parameters.values())
    if not parameters or parameters[0].kind is Parameter.KEYWORD_ONLY:
        raise CaptureError(f"model {name}: its forward takes no tokens; give it them first")
    found: dict[Role, str] = {"tokens": parameters[0].name}
    for parameter in parameters[1:]:
        if parameter.kind not in kinds or parameter.default is not Parameter.empty:
            continue
        role = role_of(parameter.name)
        if role in found:
            raise CaptureError(
                f"model {name}: its forward takes {found[role]!r} and {parameter.name!r}, both "
                f"are {role}; take them once"
            )
        if role is None:
            raise CaptureError(
                f"model {name}: its forward takes {parameter.name!r}, which no input of a step "
                f"fills; beside tokens it may take one of {', '.join(known_arguments())}, "
                "or give it a default"
            )
        found[role] = parameter.name
    return found


@dataclass(frozen=True)
class Returned:
    """What a forward returns: logits [B, S, V], the load of its routers [B, 2, E] or None, and the
    loss of its routers, 0-dim, where a stock class as the library builds it returns that."""

    logits: Tensor
    load: Tensor | None = None
    router_loss: Tensor | None = None


class Logits(nn.Module):
    """A module that returns its logits, and behind them the load of its routers, if it has one.

    arguments: names of the forward's parameters, that of tokens first. seen: of its last forward.
    """

    takes_labels: ClassVar[bool] = False

    def __init__(self, module: nn.Module, arguments: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.arguments, self.seen = module, arguments, Seen()

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        found = self.called(*given[: len(self.arguments)])
        part = self.part(found.logits, given[-1])
        return (part,) if found.load is None else (part, found.load)

    def part(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return what the loss is made of. labels: the last input, where it takes them."""
        return logits

    def called(self, *given: Tensor) -> Returned:
        """Return what the module returns."""
        tokens, *others = given
        self.seen.rows, self.seen.length = tokens.shape
        before = _numbers_kept(self.module)
        out = self.module(tokens, **dict(zip(self.arguments[1:], others, strict=True)))
        self.seen.unread = _numbers_in(out)
        now = _numbers_kept(self.module).items()
        self.seen.kept = tuple(place for place, value in now if before.get(place) is not value)
        return Returned(_logits_in(out), _load_in(out), _named(out, "router_loss"))

    @property
    def num_inputs(self) -> int:
        """Return how many tensors the forward takes, labels among them."""
        return len(self.arguments) + self.takes_labels


def _numbers_in(out: Any) -> tuple[str, ...]:
    """Return the places of the single numbers with gradients that a forward returns, such as the
    auxiliary loss of a router."""
    each: Any = enumerate(out) if isinstance(out, tuple | list) else getattr(out, "items", tuple)()
    return tuple(
        str(place)
        for place, value in each
        if isinstance(value, Tensor) and value.requires_grad and _is_number(value)
    )


def _numbers_kept(module: nn.Module) -> dict[str, Tensor]:
    """Return the single numbers with gradients among the attributes of a module and its parts."""
    return {
        f"{path}.{name}".removeprefix("."): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor) and value.requires_grad and _is_number(value)
    }


def _is_number(value: Tensor) -> bool:
    """A size that is a symbol is not compared, which would bind it."""
    return all(isinstance(size, int) and size == 1 for size in value.shape)


def _logits_in(out: Any) -> Tensor:
    """The logits that a forward returns: alone, first of several, or by name."""
    found = out[0] if isinstance(out, tuple | list) and out else out
    found = found.get("logits") if isinstance(found, dict) else getattr(found, "logits", found)
    if not isinstance(found, Tensor):
        raise CaptureError(
            f"its forward returns a {type(out).__name__} without logits; return the logits, or an "
            "object or dictionary that has them as logits"
        )
    if found.ndim != 3:
        raise CaptureError(
            f"its forward returns logits of {found.ndim} dimensions; return [B, S, V], one for "
            "each token and entry of the vocabulary"
        )
    return found


def _named(out: Any, name: str) -> Tensor | None:
    """What a forward returns by a name beside its logits."""
    return out.get(name) if isinstance(out, dict) else getattr(out, name, None)


def _load_in(out: Any) -> Tensor | None:
    found = _named(out, "router_load")
    if found is None or (found.ndim == 3 and found.shape[1] == 2 and found.requires_grad):
        return found
    raise CaptureError(
        f"its forward returns a router_load of shape {list(found.shape)}; return [B, 2, E], the "
        "sum of what models.router_load.RouterLoad gives for each router"
    )


def returned_by(module: nn.Module, tokens: Tensor, **others: Tensor) -> Returned:
    """Return what a module returns, given what its forward asks for.

    tokens: int64 [B, S]. others: by role. Raises CaptureError as capture does.
    """
    roles = roles_of(module, type(module).__name__)
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    known = {"tokens": tokens, "positions": positions, **others}
    return Logits(module, tuple(roles.values())).called(*(known[role] for role in roles))
