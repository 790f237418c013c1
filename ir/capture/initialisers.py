"""Build a module without memory: fake parameters, real buffers, and a recipe per parameter.

The module's own constructor and initialisers run; every in-place random or constant fill of a
parameter is logged by a dispatch mode, and the last whole-tensor fill is its recipe. Buffers are
real CPU tensors, because their values (rotary tables, scales) lie in no checkpoint.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

# In-place fills and factories: op -> recipe kind and the positions of its numbers.
_FILLS = {
    aten.normal_.default: ("normal", (0.0, 1.0)),
    aten.uniform_.default: ("uniform", (0.0, 1.0)),
    aten.fill_.Scalar: ("constant", (0.0,)),
    aten.zero_.default: ("constant", (0.0,)),
}
_FACTORIES = {aten.ones.default: 1.0, aten.zeros.default: 0.0}


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def format_recipe(
    kind: str, numbers: tuple[float, ...], rows: dict[int, float] | None = None
) -> str:
    """`normal(0.0, 0.02)`; a row filled afterwards with one number adds ` row(3, 0.0)`."""
    text = f"{kind}({', '.join(repr(float(n)) for n in numbers)})"
    return text + "".join(f" row({i}, {value!r})" for i, value in sorted((rows or {}).items()))


class InitLog(TorchDispatchMode):
    """Logs the latest whole-tensor fill of each storage as (kind, numbers).

    parts: fills of a part since then, with one number: {storage: {(first, count): value}} in
    elements. A padding row of an embedding is one. drawn: storages with a part drawn at random.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recipes: dict[int, tuple[str, tuple[float, ...]]] = {}
        self.parts: dict[int, dict[tuple[int, int], float]] = {}
        self.drawn: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _FILLS:
            self._fill(func, args[0], args[1:])
        elif func in _FACTORIES and isinstance(out, Tensor):
            self.recipes[_storage(out)] = ("constant", (_FACTORIES[func],))
        elif func is aten.full.default:
            self.recipes[_storage(out)] = ("constant", (float(args[1]),))
        elif func is aten.mul_.Tensor or func is aten.mul_.Scalar:
            self._scale(args[0], args[1])
        elif func is aten.add_.Tensor or func is aten.add_.Scalar:
            self._shift(args[0], args[1])
        return out

    def _fill(self, func: Any, tensor: Tensor, given: tuple) -> None:
        kind, defaults = _FILLS[func]
        self.fill(tensor, kind, (*map(float, given[: len(defaults)]), *defaults[len(given) :]))

    def fill(self, tensor: Tensor, kind: str, numbers: tuple[float, ...]) -> None:
        """Log a fill of a tensor, or of a part of it."""
        key = _storage(tensor)
        if tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes():
            self.recipes[key] = (kind, numbers)
            self.parts.pop(key, None)
            self.drawn.discard(key)
        elif kind == "constant" and tensor.is_contiguous():
            where = (int(tensor.storage_offset()), tensor.numel())
            self.parts.setdefault(key, {})[where] = numbers[0]
        else:
            self.drawn.add(key)

    def recipe(self, param: Tensor) -> str:
        """The recipe of a parameter, "" when none was seen or it is more than rows of a fill."""
        key = _storage(param)
        if key not in self.recipes or key in self.drawn:
            return ""
        row = param.numel() // max(1, param.shape[0]) if param.dim() else 1
        rows: dict[int, float] = {}
        for (first, count), value in self.parts.get(key, {}).items():
            if first % row or count % row:
                return ""
            rows.update(dict.fromkeys(range(first // row, (first + count) // row), value))
        return format_recipe(*self.recipes[key], rows)

    def move(self, source: int, target: int) -> None:
        """Move what is known of one storage to another."""
        self.recipes[target] = self.recipes.pop(source)
        if source in self.parts:
            self.parts[target] = self.parts.pop(source)
        if source in self.drawn:
            self.drawn.remove(source)
            self.drawn.add(target)

    def _scale(self, tensor: Tensor, factor: object) -> None:
        kind, numbers = self.recipes.get(_storage(tensor), ("", ()))
        if kind and isinstance(factor, int | float):
            scaled = tuple(n * factor for n in numbers)
            self.recipes[_storage(tensor)] = (kind, scaled)

    def _shift(self, tensor: Tensor, offset: object) -> None:
        kind, numbers = self.recipes.get(_storage(tensor), ("", ()))
        if kind in ("normal", "trunc_normal") and isinstance(offset, int | float):
            mean, std, *limits = numbers
            shifted = (mean + offset, std, *(limit + offset for limit in limits))
            self.recipes[_storage(tensor)] = (kind, shifted)


@contextmanager
def _logged_trunc_normal(log: InitLog) -> Iterator[None]:
    """torch draws again until no value lies outside, which fake values cannot answer.

    `_no_grad_trunc_normal_` is private, and where every spelling of trunc_normal_ ends.
    """
    draw: Callable = nn.init._no_grad_trunc_normal_

    def logged(
        tensor: Tensor, mean: float, std: float, a: float, b: float, generator: Any = None
    ) -> Tensor:
        out = tensor if isinstance(tensor, FakeTensor) else draw(tensor, mean, std, a, b, generator)
        log.fill(tensor, "trunc_normal", (mean, std, a, b))
        return out

    nn.init._no_grad_trunc_normal_ = logged
    try:
        yield
    finally:
        nn.init._no_grad_trunc_normal_ = draw


@contextmanager
def _fake_parameters(mode: FakeTensorMode, log: InitLog) -> Iterator[None]:
    register = nn.Module.register_parameter

    def register_fake(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is None or isinstance(param, FakeTensor):
            return
        with mode:
            fake = torch.empty(param.shape, dtype=param.dtype)
        if _storage(param) in log.recipes:
            log.move(_storage(param), _storage(fake))
        module._parameters[name] = nn.Parameter(fake, param.requires_grad)

    nn.Module.register_parameter = register_fake  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def build_fake(
    build: Callable[[], nn.Module], dtype: torch.dtype
) -> tuple[nn.Module, dict[str, str], dict[str, str]]:
    """The module with fake parameters in `dtype`, {parameter: recipe} and {name: first name}.

    A parameter without a recipe is missing from the first dict. The second maps each name of a
    tied parameter (every parameter has at least its own) to the name it is known by.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    log = InitLog()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _fake_parameters(mode, log), _logged_trunc_normal(log), log:
            module = build()
    finally:
        torch.set_default_dtype(before)
    recipes = {name: log.recipe(p) for name, p in module.named_parameters() if log.recipe(p)}
    first: dict[int, str] = {}
    names = {}
    for name, param in module.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(_storage(param), name)
    return module.train(), recipes, names
