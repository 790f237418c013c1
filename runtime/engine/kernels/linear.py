"""Linear layers and their two gradients. Legend: N = all leading dims, I in, O out features."""

import sys
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor
from torch.library import custom_op


def linear(x: Tensor, w: Tensor) -> Tensor:
    """x [..., I], w [O, I] -> [..., O]."""
    return torch.nn.functional.linear(x, w)


def linear_input_grad(dy: Tensor, w: Tensor) -> Tensor:
    """dy [..., O], w [O, I] -> [..., I]."""
    return torch.matmul(dy, w)


def linear_weight_grad(dy: Tensor, x: Tensor) -> Tensor:
    """dy [..., O], x [..., I] -> [O, I]."""
    dy_NO = dy.reshape(-1, dy.shape[-1])
    return dy_NO.t() @ x.reshape(-1, x.shape[-1])


def _add_linear_weight_grad(grad: Tensor, dy: Tensor, x: Tensor) -> None:
    if grad.dtype != dy.dtype:
        grad.add_(linear_weight_grad(dy, x))
        return
    dy_NO = dy.reshape(-1, dy.shape[-1])
    grad.addmm_(dy_NO.t(), x.reshape(-1, x.shape[-1]))


def _defined() -> Callable[[Tensor, Tensor, Tensor], None]:
    """The op, defined once a process: every emitted program has a copy of this file, and another
    definition, or the end of the one that is called, would leave the others a freed one."""
    held = sys.modules.setdefault(_HOME, ModuleType(_HOME)).__dict__
    if "add" not in held:
        op = custom_op(f"{_HOME}::add_linear_weight_grad", mutates_args=("grad",))
        held["add"] = op(_add_linear_weight_grad)
        held["add"].register_fake(lambda grad, dy, x: None)
    return held["add"]


_HOME = "meshwright_runtime"
_add = _defined()


def add_linear_weight_grad(grad: Tensor, dy: Tensor, x: Tensor) -> None:
    """Add linear_weight_grad(dy, x) to grad [O, I], in the matmul where both have one dtype.

    An op of its own, so that torch.compile leaves it in place: an addmm_ would become a matmul
    into another tensor and a copy of that. Elsewhere the plain function does, without dispatch.
    """
    add = _add if torch.compiler.is_compiling() else _add_linear_weight_grad
    add(grad, dy, x)
