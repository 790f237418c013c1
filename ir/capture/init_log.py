"""Follows what each storage holds while a module is built (see `contents`).

What is computed from constants alone is computed once more on real values, so it is equal to the
bit. A fill at random and the pointwise ops after it become a program. Anything else done to values
drawn at random makes them unknown, with the reason.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .contents import Program, Step, Unknown, covers_storage, fill, view_of
from .init_steps import EXACT, join, steps_of
from .storages import (
    assign,
    at,
    content_of,
    has_memory,
    is_exact,
    is_random,
    is_unset,
    poison,
    real_tensor,
    set_content,
    taken,
)

# In-place fills: name -> recipe kind and defaults of its numbers.
_FILLS = {
    "normal_": ("normal", (0.0, 1.0)),
    "uniform_": ("uniform", (0.0, 1.0)),
    "fill_": ("constant", (0.0,)),
    "zero_": ("constant", (0.0,)),
    "exponential_": ("exponential", (1.0,)),
    "log_normal_": ("log_normal", (1.0, 2.0)),
    "cauchy_": ("cauchy", (0.0, 1.0)),
    "bernoulli_": ("bernoulli", (0.5,)),
}
# Factories: overload -> kind, the place of the numbers among the arguments, or the numbers.
_FACTORIES: dict[str, tuple[str, slice | tuple[float, ...]]] = {
    "ones": ("constant", (1.0,)),
    "ones_like": ("constant", (1.0,)),
    "new_ones": ("constant", (1.0,)),
    "zeros": ("constant", (0.0,)),
    "zeros_like": ("constant", (0.0,)),
    "new_zeros": ("constant", (0.0,)),
    "full": ("constant", slice(1, 2)),
    "full_like": ("constant", slice(1, 2)),
    "new_full": ("constant", slice(2, 3)),
    "scalar_tensor": ("constant", slice(0, 1)),
    "rand": ("uniform", (0.0, 1.0)),
    "rand_like": ("uniform", (0.0, 1.0)),
    "randn": ("normal", (0.0, 1.0)),
    "randn_like": ("normal", (0.0, 1.0)),
    "normal.float_float": ("normal", slice(0, 2)),
}
_EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
          "empty_permuted"}  # fmt: skip
_COPIES = {"clone", "_to_copy", "lift_fresh_copy"}
# Ops that change sizes and strides of a tensor alone.
_RESHAPES = {"t_", "transpose_", "squeeze_", "unsqueeze_", "as_strided_", "detach_", "set_",
             "swapdims_", "swapaxes_"}  # fmt: skip
_READS = {"_local_scalar_dense", "equal"}


def _tensors(tree: Any) -> list[Tensor]:
    leaves = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return [leaf for leaf in leaves if leaf.layout is torch.strided]


def _real(leaf: Any) -> Any:
    return real_tensor(leaf) if isinstance(leaf, Tensor) else leaf


@dataclass
class _Call:
    """One op that has run. made: outputs with storages of their own. written: changed operands.

    read: tensors whose values it takes.
    """

    func: Any
    name: str
    args: tuple
    kwargs: dict[str, Any]
    out: Any
    made: list[Tensor]
    written: list[Tensor]
    read: list[Tensor]

    @property
    def key(self) -> str:
        """The name in the table of factories."""
        full = f"{self.name}.{self.func._overloadname}"
        return full if full in _FACTORIES else self.name


def _run(func: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> _Call:
    """Run an op and note what it made, wrote and read."""
    written, only_written = [], set()
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found = _tensors(args[place] if place < len(args) else kwargs.get(argument.name))
            written += found
            only_written |= {id(t) for t in found if argument.kwarg_only}
    given = _tensors((args, kwargs))
    for tensor in written:
        if not (name in (*_FILLS, "copy_") and covers_storage(tensor)):
            poison(tensor)
    out = func(*args, **kwargs)
    known = {id(t.untyped_storage()) for t in given}
    made = [t for t in _tensors(out) if id(t.untyped_storage()) not in known]
    read = [t for t in given if id(t) not in only_written]
    return _Call(func, name, args, kwargs, out, made, written, read)


class InitLog(TorchDispatchMode):
    """Give each storage its content, op by op."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        if func.namespace == "prim" or name in _RESHAPES:
            return func(*args, **kwargs)
        given = _tensors((args, kwargs))
        fake = any(not has_memory(t) for t in given)
        if name in _READS and fake and all(is_exact(content_of(t)) for t in given):
            return func(*tree_map(_real, args), **kwargs)
        call = _run(func, name, args, kwargs)
        on_meta = any(t.device.type == "meta" for t in (*call.made, *call.written))
        if (call.made or call.written) and (not on_meta or _is_fill(call)):
            _follow(call)
            for tensor in call.written:
                keep_up(tensor)
        return call.out

    def fill(self, tensor: Tensor, kind: str, numbers: tuple[float, ...]) -> None:
        """Follow a fill of a tensor, or of a part of it."""
        assign(tensor, Program((fill(kind, numbers),)))
        keep_up(tensor)


def _is_fill(call: _Call) -> bool:
    return call.name in _FILLS or call.key in _FACTORIES


def keep_up(tensor: Tensor) -> None:
    """Let parameters that were made from a real tensor follow what is written into it later."""
    for real, fake in getattr(tensor.untyped_storage(), "meshwright_fakes", {}).values():
        assign(fake, taken(real, fake))


def _follow(call: _Call) -> None:
    name = call.name
    if not any(t.is_floating_point() or not has_memory(t) for t in (*call.made, *call.written)):
        _replay(call)
    elif name in _FILLS and len(call.written) == 1 and not _tensors(call.args[1:]):
        kind, defaults = _FILLS[name]
        given = (*call.args[1:], *call.kwargs.values())[: len(defaults)]
        numbers = tuple(float(n) for n in given if isinstance(n, int | float))
        assign(call.args[0], Program((fill(kind, (*numbers, *defaults[len(numbers) :])),)))
    elif name in _EMPTY and call.made:
        set_content(call.made[0], Program())
    elif call.key in _FACTORIES and call.made:
        kind, where = _FACTORIES[call.key]
        given = call.args[where] if isinstance(where, slice) else where
        set_content(call.made[0], Program((fill(kind, tuple(map(float, given))),)))
    elif name == "copy_" or (name == "fill_" and call.written):
        if not _same_elements(call.args[0], call.args[1]):
            assign(call.args[0], taken(call.args[1], call.args[0]))
    elif name in _COPIES and call.made:
        assign(call.made[0], taken(call.args[0], call.made[0]))
    elif not (_decomposed(call) or _folded(call) or _stepped(call)):
        _replay(call)


def _same_elements(target: Any, source: Any) -> bool:
    """Whether a copy changes nothing: `w[3] *= 0` ends in one of w[3] onto itself."""
    return (
        isinstance(source, Tensor)
        and source.untyped_storage() is target.untyped_storage()
        and view_of(source) == view_of(target)
    )


def _decomposed(call: _Call) -> bool:
    """Follow the QR of a normal matrix, whose Q times the signs of R is uniform over rotations."""
    first = content_of(call.args[0]) if call.args and isinstance(call.args[0], Tensor) else None
    if call.name == "linalg_qr" and isinstance(first, Program) and len(first.steps) == 1:
        if first.steps[0].kind != "normal" or first.steps[0].numbers != (0.0, 1.0):
            return False
        for tensor, part in zip(call.made, "qr", strict=True):
            why = "a part of the QR of a random matrix that is no torch.nn.init.orthogonal_"
            set_content(tensor, Unknown(why, part))
            tensor.untyped_storage().meshwright_draw = first.steps[0].draw  # type: ignore[attr-defined]
        return True
    if not isinstance(first, Unknown) or not first.part:
        return False
    if call.name in ("diagonal_copy", "clone", "sign") and first.part in ("r", "s") and call.made:
        set_content(call.made[0], replace(first, part="s" if call.name == "sign" else "r"))
        return True
    signs = [content_of(t) for t in _tensors(call.args[1:])]
    if call.name in ("mul", "mul_") and first.part == "q" and getattr(signs[0], "part", "") == "s":
        draw = call.args[0].untyped_storage().meshwright_draw
        step = Step("orthogonal", draw=draw)
        set_content((call.made or call.written)[0], Program((step,)))
        return True
    return False


def _operands(call: _Call) -> list[Any] | None:
    """The operands of a pointwise op, known scalars as numbers; None where one is unknown."""
    found = []
    for operand in call.args:
        if isinstance(operand, Tensor) and not is_random(content_of(operand)):
            if not is_exact(content_of(operand)):
                return None
            try:
                operand = real_tensor(operand)
            except MemoryError:
                return None
            operand = operand.item() if operand.dim() == 0 else operand
        found.append(operand)
    return found


def _folded(call: _Call) -> bool:
    """Follow an exact op on a number that fills all."""
    targets = call.written or call.made
    name = call.name.rstrip("_")
    tensors = _tensors((call.args, call.kwargs))
    if name not in EXACT or len(tensors) != 1 or not covers_storage(targets[0]):
        return False
    content = content_of(tensors[0])
    if not isinstance(content, Program) or content.constant is None:
        return False
    number = torch.full((1,), content.constant, dtype=tensors[0].dtype)
    args = [number if isinstance(a, Tensor) else a for a in call.args]
    result = call.func(*args, **call.kwargs).item()
    assign(targets[0], Program((fill("constant", (float(result),)),)))
    return True


def _stepped(call: _Call) -> bool:
    """Follow a pointwise op on values drawn at random; tell whether it is one."""
    random = [
        n for n, a in enumerate(call.args) if isinstance(a, Tensor) and is_random(content_of(a))
    ]
    targets = call.written or call.made
    if not random or len(targets) != 1 or not targets[0].is_floating_point():
        return False
    (target,), name = targets, call.name.rstrip("_")
    kwargs = {k: v for k, v in call.kwargs.items() if v is not None and k != "out"}
    in_place = bool(call.written) and call.args[0] is target
    if len(random) == 2:
        return _joined(call, target, kwargs)
    operands = _operands(call)
    steps = operands and steps_of(name, operands, random[0], kwargs)
    if steps is None or operands is None:
        return False
    steps = tuple(replace(s, shape=tuple(target.shape)) for s in steps)
    if in_place and random[0] == 0 and not covers_storage(target):
        set_content(target, content_of(target).then(*at(steps, target)))  # type: ignore[union-attr]
        return True
    program = taken(call.args[random[0]], target)
    assign(target, program.then(*steps) if isinstance(program, Program) else program)
    return True


def _joined(call: _Call, target: Tensor, kwargs: dict[str, Any]) -> bool:
    """Follow an op on two random values of which one is computed from the other."""
    first, second, *others = (taken(a, target) for a in call.args if isinstance(a, Tensor))
    if others or not (isinstance(first, Program) and isinstance(second, Program)):
        return False
    program = join(call.name.rstrip("_"), first, second, kwargs)
    if program is not None:
        assign(target, program)
    return program is not None


def _replay(call: _Call) -> None:
    """Compute known values once more where tensors have no memory; anything else is unknown."""
    unknown = _obstacle(call)
    tensors = (*call.written, *call.made)
    if unknown is None and any(
        not has_memory(t) for t in _tensors((call.args, call.kwargs, call.out))
    ):
        unknown = _replayed(call)
    elif unknown is None:
        for tensor in tensors:
            set_content(tensor, None)
    if unknown is not None:
        for tensor in tensors:
            set_content(tensor, unknown)


def _replayed(call: _Call) -> Unknown | None:
    read = {id(t) for t in call.read}
    for tensor in call.written:
        if id(tensor) not in read and not is_exact(content_of(tensor)) and covers_storage(tensor):
            set_content(tensor, Program())
    try:
        args, kwargs = tree_map(_real, (call.args, call.kwargs))
        values = _tensors(call.func(*args, **kwargs))
    except MemoryError:
        return Unknown(f"values of {call.func} that take more than 64 MiB")
    except Exception as error:  # what fake tensors can and real ones cannot is not to be foreseen
        return Unknown(f"{call.func}, which fails on real values: {error}")
    made = {id(t) for t in call.made}
    for tensor, value in zip(_tensors(call.out), values, strict=True):
        if id(tensor) in made:
            assign(tensor, value)
    return None


def _obstacle(call: _Call) -> Unknown | None:
    """Why the results of an op cannot be computed again."""
    if torch.Tag.nondeterministic_seeded in call.func.tags:
        return Unknown(f"{call.func}, a random op")
    written = {id(t) for t in call.written}
    for tensor in call.read:
        content = content_of(tensor)
        if isinstance(content, Unknown):
            return replace(content, part="")
        if is_random(content):
            return Unknown(f"{call.func} of values drawn at random")
        if is_unset(content) and id(tensor) not in written:
            return Unknown(f"{call.func} of values that were never set")
    return None
