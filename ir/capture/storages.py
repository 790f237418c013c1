"""What storages hold while a module is built, and how copies and fills change it.

The content hangs on the storage object, which lives as long as its memory. A real tensor without
content holds values that no random op touched. A storage on meta without content was never set.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from .contents import (
    LIMIT_BYTES,
    MAX_STEPS,
    Content,
    Exact,
    Program,
    Step,
    Unknown,
    covers_storage,
    materialised,
    on_storage,
    view_of,
)

_MAX_PARTS = 8  # of constants alone; more of them become values
_TOO_LARGE = f"values computed one by one that take more than {LIMIT_BYTES >> 20} MiB"


def has_memory(tensor: Tensor) -> bool:
    return tensor.untyped_storage().device.type != "meta"


def content_of(tensor: Tensor) -> Content | None:
    """Return what a tensor's storage holds, None for the values of a real one."""
    known = getattr(tensor.untyped_storage(), "meshwright_content", None)
    return Program() if known is None and not has_memory(tensor) else known


def set_content(tensor: Tensor, content: Content | None) -> None:
    if isinstance(content, Program) and len(content.steps) > _MAX_PARTS:
        content = _shortened(content, tensor)
    tensor.untyped_storage().meshwright_content = content  # type: ignore[attr-defined]


def _shortened(program: Program, tensor: Tensor) -> Content:
    if not program.random and tensor.untyped_storage().nbytes() <= LIMIT_BYTES:
        return materialised(program, tensor)
    if len(program.steps) > MAX_STEPS:
        return Unknown(f"{len(program.steps)} fills and steps, the most is {MAX_STEPS}")
    return program


def is_random(content: Content | None) -> bool:
    return isinstance(content, Program) and content.random


def is_unset(content: Content | None) -> bool:
    return isinstance(content, Program) and not content.steps


def is_exact(content: Content | None) -> bool:
    """Tell whether the values are known to the bit."""
    fixed = isinstance(content, Program) and bool(content.steps) and not content.random
    return content is None or isinstance(content, Exact) or fixed


def real_tensor(tensor: Tensor) -> Tensor:
    """A tensor with its values; one without memory gets some. Raises MemoryError above 64 MiB."""
    if has_memory(tensor):
        return tensor
    content = content_of(tensor)
    if isinstance(content, Program):
        if tensor.untyped_storage().nbytes() > LIMIT_BYTES:
            raise MemoryError(tensor.untyped_storage().nbytes())
        content = materialised(content, tensor)
        set_content(tensor, content)
    assert isinstance(content, Exact), content
    return on_storage(content.storage, tensor)


def taken(source: Tensor, target: Tensor) -> Program | Tensor | Unknown:
    """Return what a copy of `source` in the sizes of `target` holds; a tensor where it is known."""
    content = content_of(source)
    if isinstance(content, Unknown) or is_unset(content):
        return content  # type: ignore[return-value]
    if isinstance(content, Program) and content.random:
        return _drawn_copy(content, source, target)
    if isinstance(content, Program) and content.constant is not None:
        number = torch.full((1,), content.constant, dtype=source.dtype).to(target.dtype).item()
        if number == content.constant or target.dtype != source.dtype:
            return Program((Step("constant", (float(number),)),))
        return content
    try:
        return real_tensor(source).detach().expand(target.shape).to(target.dtype)
    except MemoryError:
        return Unknown(_TOO_LARGE)


def _drawn_copy(content: Program, source: Tensor, target: Tensor) -> Program | Unknown:
    if not target.is_floating_point():
        return Unknown(f"values drawn at random as {target.dtype}")
    if source.numel() != target.numel() or _repeats(source):
        return Unknown("values drawn at random and repeated")
    whole = covers_storage(source)
    if whole and (source.shape, source.stride()) == (target.shape, target.stride()):
        return content
    if content.steps[0].kind == "orthogonal" and not whole:
        return Unknown("a part of an orthogonal matrix")
    if not content.even:
        return Unknown("a part or another order of values drawn at random and set by parts")
    return replace(content, plain=False)


def _repeats(tensor: Tensor) -> bool:
    repeated = any(t == 0 and n > 1 for n, t in zip(tensor.shape, tensor.stride(), strict=True))
    return repeated or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def assign(target: Tensor, value: Program | Tensor | Unknown) -> None:
    """Let the elements of `target` hold a value; a real target has got it by itself."""
    if isinstance(value, Unknown):
        set_content(target, value)
    elif covers_storage(target):
        set_content(target, _whole(target, value) if isinstance(value, Tensor) else value)
    elif isinstance(content_of(target), Unknown):
        return
    elif isinstance(value, Tensor):
        _assign_values(target, value)
    elif value.random:
        _assign_drawn(target, value)
    elif not value.steps:
        set_content(target, Unknown("a part that is a copy of values never set"))
    else:
        _assign_number(target, value)


def _whole(target: Tensor, values: Tensor) -> Content | None:
    """The values of a whole storage."""
    if has_memory(target):
        return None
    if target.untyped_storage().nbytes() > LIMIT_BYTES:
        number = all_equal(values)
        fits = number is not None
        return Program((Step("constant", (number,)),)) if fits else Unknown(_TOO_LARGE)  # type: ignore[arg-type]
    count = target.untyped_storage().nbytes() // target.element_size()
    storage = torch.empty(count, dtype=target.dtype).untyped_storage()
    on_storage(storage, target).copy_(values)
    return Exact(storage)


def all_equal(values: Tensor) -> float | None:
    """The number that all elements are, None where they differ; 0 and -0 differ."""
    if not values.numel() or not values.is_floating_point():
        return None
    first = values.reshape(-1)[0]
    same = bool((values == first).all()) and bool((values.signbit() == first.signbit()).all())
    return first.item() if same else None


def _assign_values(target: Tensor, values: Tensor) -> None:
    content = content_of(target)
    if isinstance(content, Program) and content.random:
        step = Step("stored", where=view_of(target), operand=values.clone(), shape=target.shape)
        set_content(target, content.then(step))
    elif has_memory(target):
        set_content(target, None)
    else:
        _set_real(target, values)


def _set_real(target: Tensor, values: Tensor) -> None:
    try:
        real_tensor(target).copy_(values)
    except MemoryError:
        set_content(target, Unknown(_TOO_LARGE))


def _assign_number(target: Tensor, value: Program) -> None:
    content = content_of(target)
    drawn = is_random(content)
    if isinstance(content, Program) and (drawn or not has_memory(target)):
        set_content(target, content.then(*at(value.steps, target)))
    elif has_memory(target):
        set_content(target, None)
    else:
        assert value.constant is not None, value
        _set_real(target, torch.tensor(value.constant, dtype=target.dtype))


def _assign_drawn(target: Tensor, value: Program) -> None:
    base = base_program(target)
    fits = value.even and value.steps[0].kind != "orthogonal"
    if isinstance(base, Unknown) or not fits or any(s.earlier is not None for s in value.steps):
        set_content(target, Unknown("a part that is drawn at random and computed further"))
    else:
        set_content(target, base.then(*at(value.steps, target)))


def at(steps: tuple[Step, ...], target: Tensor) -> tuple[Step, ...]:
    """Steps on the elements of `target` alone."""
    return tuple(replace(s, where=view_of(target), shape=tuple(target.shape)) for s in steps)


def base_program(target: Tensor) -> Program | Unknown:
    """The program of a storage; known values become its first step."""
    content = content_of(target)
    if isinstance(content, Program | Unknown):
        return content
    storage = target.untyped_storage() if content is None else content.storage
    if storage.nbytes() > LIMIT_BYTES:
        return Unknown(_TOO_LARGE)
    values = torch.empty(0, dtype=target.dtype).set_(storage).clone()
    return Program((Step("stored", operand=values, shape=tuple(values.shape)),))


def poison(tensor: Tensor) -> None:
    """Mark real memory that was never set, for what is not set later."""
    if has_memory(tensor) and tensor.is_floating_point() and is_unset(content_of(tensor)):
        torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).fill_(math.nan)
