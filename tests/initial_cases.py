"""Initialisers as users write them: known values, random ones, and those that are refused."""

import copy
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Parameter, init

Make = Callable[[], Tensor]
InPlace = Callable[[Tensor], object]


class Holder(nn.Module):
    """One parameter `w`, made by a function or changed after it was registered."""

    def __init__(self, make: Make | None, change: InPlace | None, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.w = Parameter(torch.empty(shape) if make is None else make())
        if change is not None:
            with torch.no_grad():
                change(self.w)


def _steps(*steps: Callable[[Tensor], object]) -> InPlace:
    def change(w: Tensor) -> None:
        for step in steps:
            step(w)

    return change


def _put(where: object, value: object) -> InPlace:
    return lambda w: w.__setitem__(where, value)


def _set_data(value: Callable[[], Tensor]) -> InPlace:
    return lambda w: setattr(w, "data", value())


def _by_rows(w: Tensor) -> None:
    for row in range(w.shape[0]):
        w[row].fill_(row / 7)


def _read(w: Tensor) -> None:
    w.fill_(0.1)
    w.mul_(3.0 if w.sum().item() > 1 else 5.0)


def _set_data_first(w: Tensor) -> None:
    values = torch.tensor(_LIST)
    w.data = values
    values[2] = 0.5
    w.data[3] = 0.25


def _by_operators(w: Tensor) -> None:
    """What Python takes apart: w[0] is read, changed in place, and set to itself."""
    w[0] *= 0
    w.data[240:] *= 0.1
    w.data[3:40] += 0.5


_TABLE = np.linspace(-1, 2, 72).reshape(12, 6)
_LIST = [[math.sin(6 * i + j) for j in range(6)] for i in range(12)]

# In place, on a parameter of 12 x 6.
KNOWN: dict[str, InPlace] = {
    "ones": init.ones_,
    "constant": lambda w: init.constant_(w, 0.1),
    "eye": init.eye_,
    "copy of eye": lambda w: w.copy_(torch.eye(12, 6)),
    "copy of arange": lambda w: w.copy_(torch.arange(72.0).view(12, 6)),
    "numpy": lambda w: w.copy_(torch.from_numpy(_TABLE)),
    "list": lambda w: w.copy_(torch.tensor(_LIST)),
    "set data": _set_data(lambda: torch.tensor(_LIST)),
    "set data and scale": _steps(_set_data(lambda: torch.tensor(_LIST)), lambda w: w.div_(3)),
    "set data and go on": _set_data_first,
    "into data": lambda w: w.data.__setitem__(slice(None), torch.linspace(0, 1, 6)),
    "rows of ones": _steps(init.ones_, lambda w: w[:4].mul_(0)),
    "a constant scaled": _steps(init.ones_, lambda w: w.mul_(0.1), lambda w: w.div_(3).add_(1e-3)),
    "a constant by exp": _steps(lambda w: w.fill_(0.3), lambda w: w.exp_()),
    "a row by init": _steps(init.zeros_, lambda w: init.constant_(w[0], 3.3)),
    "a column": _steps(init.zeros_, lambda w: w[:, 2].fill_(0.7)),
    "a box": _steps(init.zeros_, lambda w: w[3:5, 1:4].fill_(0.7)),
    "steps of rows": _steps(init.zeros_, lambda w: w[::2].fill_(0.7)),
    "each row": _by_rows,
    "one element": _steps(init.zeros_, _put((2, 1), 1)),
    "two parts of nothing": _steps(lambda w: w[:5].fill_(2.0), lambda w: w[5:].fill_(-0.3)),
    "an index": _steps(init.zeros_, _put(torch.tensor([1, 4]), 5.0)),
    "a mask": _steps(init.eye_, lambda w: w.masked_fill_(w > 0.5, -2.0)),
    "clamp": _steps(lambda w: w.copy_(torch.tensor(_LIST)), lambda w: w.clamp_(-0.5, 0.25)),
    "upper triangle": _steps(init.ones_, lambda w: w.triu_()),
    "a value read": _read,
    "over a random fill": _steps(init.normal_, lambda w: w.copy_(torch.eye(12, 6))),
    "transposed": lambda w: w.copy_(torch.arange(72.0).view(6, 12).t()),
    "infinite": lambda w: w.fill_(-math.inf),
    "negative zero": lambda w: w.fill_(-0.0),
}
# Made before it is a parameter.
KNOWN_MADE: dict[str, Make] = {
    "small ones": lambda: 1e-4 * torch.ones(12, 6),
    "full": lambda: torch.full((12, 6), 0.1),
    "linspace": lambda: torch.linspace(0, 1, 72).view(12, 6),
    "log of arange": lambda: torch.log(torch.arange(1.0, 7).repeat(12, 1)),
    "tensor": lambda: torch.tensor(_LIST),
    "scalar": lambda: torch.tensor(0.3),
    "slopes": lambda: torch.tensor([2 ** (-8 * i / 12) for i in range(1, 13)]),
    "half of a table": lambda: torch.arange(144.0).view(24, 6)[12:],
    "columns": lambda: torch.arange(72.0).view(6, 12).t(),
    "zeros and one": lambda: torch.cat([torch.zeros(11, 6), torch.ones(1, 6)]),
}

# In place, on a parameter of 480 x 250.
DRAWN: dict[str, InPlace] = {
    "normal": lambda w: init.normal_(w, 0.5, 0.02),
    "uniform": lambda w: init.uniform_(w, -1, 3),
    "trunc normal": lambda w: init.trunc_normal_(w, 0.1, 0.5, -1.0, 0.5),
    "kaiming uniform": lambda w: init.kaiming_uniform_(w, a=math.sqrt(5)),
    "kaiming normal": init.kaiming_normal_,
    "xavier uniform": init.xavier_uniform_,
    "xavier normal": init.xavier_normal_,
    "exponential": lambda w: w.exponential_(2.0),
    "log normal": lambda w: w.log_normal_(0.5, 0.25),
    "bernoulli": lambda w: w.bernoulli_(0.25),
    "scaled": _steps(init.normal_, lambda w: w.div_(7)),
    "moved": _steps(init.uniform_, lambda w: w.add_(1, alpha=2), lambda w: w.sub_(0.25)),
    "turned": _steps(init.uniform_, lambda w: w.neg_(), lambda w: w.copy_(5 - w)),
    "clamped": _steps(init.normal_, lambda w: w.clamp_(-0.5, 1.0)),
    "clamped below": _steps(init.normal_, lambda w: w.clamp_(min=-0.5)),
    "log": _steps(lambda w: w.uniform_(1, 16), lambda w: w.log_()),
    "erfinv": _steps(lambda w: w.uniform_(-0.9, 0.9), lambda w: w.erfinv_().mul_(0.1)),
    "rows of zero": _steps(init.normal_, lambda w: w[:40].mul_(0)),
    "rows scaled": _steps(init.normal_, lambda w: w[240:].mul_(0.1)),
    "by operators": _steps(init.normal_, _by_operators),
    "rows by hand": _steps(init.normal_, lambda w: w[3].copy_(torch.linspace(0, 1, 250))),
    "a box by hand": _steps(init.normal_, _put((slice(2, 50), slice(9, 100)), 0.25)),
    "a row by init": _steps(init.normal_, lambda w: init.constant_(w[0], 3.3)),
    "halves": _steps(lambda w: init.normal_(w[:240]), lambda w: init.uniform_(w[240:])),
    "by columns": _steps(init.normal_, lambda w: w.mul_(torch.linspace(0.5, 2, 250))),
    "by rows": _steps(init.normal_, lambda w: w.mul_(torch.linspace(0.5, 2, 480)[:, None])),
    "masked": _steps(init.normal_, lambda w: w.mul_(torch.arange(120000).view(480, 250) % 3)),
    "set data": _set_data(lambda: torch.randn(480, 250) * 0.5),
    "copy": lambda w: w.copy_(torch.randn(250, 480).t() * 3),
    "random like": lambda w: w.copy_(torch.rand_like(w) - 0.5),
    "orthogonal": init.orthogonal_,
    "orthogonal with gain": lambda w: init.orthogonal_(w, 1.5),
}
DRAWN_MADE: dict[str, Make] = {
    "randn": lambda: torch.randn(480, 250) * 0.5 + 1,
    "rand": lambda: torch.rand(480, 250),
    "torch.normal": lambda: torch.normal(1.0, 0.5, (480, 250)),
    "divided": lambda: 2 / (1 + torch.rand(480, 250)),
    "steps of time": lambda: _steps_of_time(480, 250),
    "part of a table": lambda: torch.randn(960, 250)[480:],
    "sampled": lambda: torch.distributions.Uniform(1.0, 2.0).sample((480, 250)),
}


def _steps_of_time(*shape: int) -> Tensor:
    """The bias of a state space model: the inverse of softplus of a log-uniform value."""
    dt = torch.exp(torch.rand(shape) * 4.6 - 6.9).clamp(min=1e-4)
    return dt + torch.log(-torch.expm1(-dt))


REFUSED: dict[str, tuple[InPlace, str]] = {
    "sparse": (lambda w: init.sparse_(w, 0.5), r"index_put_.*of values drawn at random"),
    "two draws": (_steps(init.normal_, lambda w: w.add_(torch.rand(12, 6))), "add_.*at random"),
    "triangle": (_steps(init.normal_, lambda w: w.tril_()), "tril_.*drawn at random"),
    "norm": (_steps(init.normal_, lambda w: w.div_(w.norm())), "div_|linalg_vector_norm"),
    "permuted": (lambda w: w.copy_(torch.randperm(72).view(12, 6)), "randperm.*a random op"),
    "expanded": (lambda w: w.copy_(torch.randn(6)), "drawn at random and repeated"),
    "a copied row": (_steps(init.normal_, lambda w: w[5].copy_(w[6])), "copies random values"),
    "a part never set": (lambda w: w[:5].fill_(2.0), "a part of it is never set"),
    "steps of rows": (_steps(init.normal_, lambda w: w[::2].fill_(0.0)), "no box"),
    "scaled without fill": (lambda w: w.mul_(2), "never set"),
}


class Shared(nn.Module):
    """Two parameters of 12 x 6; how the second comes from the first."""

    def __init__(self, second: Callable[[Parameter], Tensor]) -> None:
        super().__init__()
        self.a = Parameter(torch.randn(12, 6))
        self.b = Parameter(second(self.a).detach())


class Registered(nn.Module):
    """A parameter that is filled through the caller's own name after it was registered."""

    def __init__(self) -> None:
        super().__init__()
        w = Parameter(torch.empty(12, 6))
        self.a = w
        init.constant_(w, 0.2)
        self.b = w


def deep_copies() -> nn.Module:
    layer = nn.Linear(6, 12)
    return nn.ModuleList([copy.deepcopy(layer) for _ in range(3)])
