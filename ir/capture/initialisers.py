"""Build a module without memory: fake parameters, real buffers, and a recipe per parameter.

The module's own constructor and initialisers run under `InitLog`, which follows what each parameter
holds. Values that are known travel as constants, `stored(#digest)`. Buffers are real CPU tensors,
because their values (rotary tables, scales) lie in no checkpoint.
"""

import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.overrides import TorchFunctionMode

from ..errors import CaptureError
from .constants import digest_of
from .contents import (
    LIMIT_BYTES,
    RANDOM,
    Program,
    Unknown,
    View,
    covered,
    covers_storage,
    format_program,
    view_of,
)
from .init_log import InitLog
from .lines import short_line
from .storages import (
    all_equal,
    assign,
    content_of,
    is_unset,
    real_tensor,
    set_content,
    taken,
)

_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_ORTHOGONAL_ELEMENTS = 1 << 24  # each rank makes the whole matrix
_CHOICES = (DataDependentOutputException, GuardOnDataDependentSymNode)
_WAY_OUT = "start it with a fill of torch.nn.init, pointwise steps after it, or values set by hand"

# What torch's weight_norm takes of drawn weights.
_NORMS = re.compile(r"\bparametrizations\.\w+\.original0$")
_START_NORMS = "weight_norm keeps norms there: call nn.init.ones_ on"


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make `dtype` what torch's factories take where they are given none."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


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


# Of each real storage, by view: a tensor on it, and the fake parameter that stands for it. It hangs
# on the storage and keeps it alive, in a circle that Python cannot see, so that it must be emptied.
_Twins = dict[View, tuple[Tensor, nn.Parameter]]


@contextmanager
def _fake_parameters(mode: FakeTensorMode, known: list[_Twins]) -> Iterator[None]:
    register = nn.Module.register_parameter

    def register_fake(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if isinstance(param, nn.UninitializedParameter):
            raise CaptureError(
                f"param {name} of {type(module).__name__} has no shape before the first call; give "
                "its sizes, as nn.Linear takes them where nn.LazyLinear does not"
            )
        if param is not None and not isinstance(param, FakeTensor):
            module._parameters[name] = _fake_of(param, mode, known)

    cast: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # so that tied ones stay tied

    def apply_fake(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """What `.float()` and `.to(dtype)` end in, which torch cannot swap a fake parameter in."""
        for child in module.children() if recurse else ():
            child._apply(fn)
        for name, param in module._parameters.items():
            if param is not None:
                module._parameters[name] = _cast(param, fn, cast)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
        return module

    apply = nn.Module._apply
    nn.Module.register_parameter = register_fake  # type: ignore[method-assign, assignment]
    nn.Module._apply = apply_fake  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
        nn.Module._apply = apply  # type: ignore[method-assign]
        for twins in known:
            twins.clear()


def _cast(
    param: nn.Parameter,
    fn: Callable[[Tensor], Tensor],
    known: dict[int, tuple[nn.Parameter, nn.Parameter]],
) -> nn.Parameter:
    """The parameter that `fn` makes of one; the parameter itself where its dtype stays."""
    if id(param) not in known:
        with torch.no_grad():
            value = fn(param.detach())
        same = value.dtype is param.dtype
        known[id(param)] = param, param if same else nn.Parameter(value, param.requires_grad)
    return known[id(param)][1]


class _FakeData(TorchFunctionMode):
    """Lets `w.data = values` give a fake parameter the fake twin of real values."""

    def __init__(self, mode: FakeTensorMode, known: list[_Twins]) -> None:
        super().__init__()
        self.mode, self.known = mode, known

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func == _SET_DATA and isinstance(args[0], FakeTensor):
            target, values = args
            if not isinstance(values, FakeTensor):
                args = (target, _fake_of(values.detach(), self.mode, self.known).detach())
        return func(*args, **(kwargs or {}))


def _fake_of(param: Tensor, mode: FakeTensorMode, known: list[_Twins]) -> nn.Parameter:
    """The fake twin of a real parameter, the same one each time it is registered."""
    storage = param.untyped_storage()
    twins: _Twins = storage.__dict__.setdefault("meshwright_fakes", {})
    if not twins:
        known.append(twins)
    view = view_of(param)
    if view not in twins:
        with mode:
            fake = torch.empty(param.shape, dtype=param.dtype)
        assign(fake, taken(param, fake))
        if any(_overlap(view, other) for other in twins):
            set_content(fake, Unknown("memory of another parameter in another shape or order"))
        twins[view] = (param.detach(), nn.Parameter(fake, param.requires_grad))
    return twins[view][1]


def _overlap(one: View, other: View) -> bool:
    return one.offset < _end(other) and other.offset < _end(one)


def _end(view: View) -> int:
    return view.offset + 1 + sum((n - 1) * t for n, t in zip(view.size, view.stride, strict=True))


class Built(NamedTuple):
    """A module with fake parameters, and how they start.

    recipes: {parameter: recipe}; one for which no initialiser was seen is missing. tied: {name:
    first name of the parameter}. stored: {digest: values} that recipes name.
    """

    module: nn.Module
    recipes: dict[str, str]
    tied: dict[str, str]
    stored: dict[str, Tensor]


def build_fake(build: Callable[[], nn.Module], dtype: torch.dtype) -> Built:
    """Build the module with fake parameters in `dtype`.

    Raises CaptureError for a parameter whose initial values no recipe gives again.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    log, known = InitLog(), list[_Twins]()
    with (
        default_dtype(dtype),
        _fake_parameters(mode, known),
        _logged_trunc_normal(log),
        _FakeData(mode, known),
        log,
        _no_choices(),
    ):
        module = build()
    tied = _tied(module)
    recipes = _Recipes()
    for name, param in module.named_parameters():
        if tied[name] == name:
            recipes.add(name, param)
    return Built(module.train(), recipes.texts, tied, recipes.stored)


@contextmanager
def _no_choices() -> Iterator[None]:
    """Refuse a constructor that asks for values of parameters, which have no memory."""
    try:
        yield
    except Exception as raised:
        error = raised if isinstance(raised, _CHOICES) else raised.__cause__
        if not isinstance(error, _CHOICES):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [short_line(f.filename, f.lineno or 0) for f in frames if f.name == "__init__"]
        line = next(filter(None, reversed(lines)), "an unknown line")
        of_torch = any(f.name == "orthogonal" for f in frames)
        way = "call orthogonal with use_trivialization=False" if of_torch else "leave that out"
        raise CaptureError(
            f"{getattr(error, 'func', 'a choice')} under {line}, as the module is built, reads "
            f"values of a parameter, which is captured without them; {way}, or compute what it "
            "gives in forward"
        ) from error


def _tied(module: nn.Module) -> dict[str, str]:
    """The name by which a parameter is known, by each of its names."""
    first: dict[int, tuple[str, View]] = {}
    names = {}
    for name, param in module.named_parameters(remove_duplicate=False):
        key = id(param.untyped_storage())
        known, view = first.setdefault(key, (name, view_of(param)))
        if view != view_of(param):
            raise CaptureError(
                f"param {name} shares the memory of {known} in another shape or order "
                f"{tuple(param.shape)}; tie the whole parameter, or reshape it in the forward"
            )
        names[name] = known
    return names


@dataclass
class _Recipes:
    """Recipes of the parameters so far. owners: of each draw the parameter that it was first in."""

    texts: dict[str, str] = field(default_factory=dict)
    stored: dict[str, Tensor] = field(default_factory=dict)
    owners: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def add(self, name: str, param: Tensor) -> None:
        """Write the recipe of a parameter. Raises CaptureError where there is none."""
        content = content_of(param)
        if isinstance(content, Unknown):
            normed = _NORMS.search(name)
            way = f"{_START_NORMS} {name}, for instance" if normed else _WAY_OUT
            raise CaptureError(f"param {name}: starts from {content.why}; {way}")
        if is_unset(content):
            return
        if isinstance(content, Program):
            text = self._of_program(name, param, content)
        else:
            text = self._of_values(name, real_tensor(param))
        self.texts[name] = text

    def _of_program(self, name: str, param: Tensor, program: Program) -> str:
        shape = tuple(param.shape)
        if not (covers_storage(param) and param.is_contiguous()):
            return self._of_other_order(name, param, program)
        if not covered(program, shape):
            raise CaptureError(f"param {name}: a part of it is never set; {_WAY_OUT}")
        text = format_program(program, shape, lambda values: self._store(name, values))
        if text is None and not program.random and _small(param):
            return self._of_values(name, real_tensor(param))
        if text is None:
            raise CaptureError(
                f"param {name}: a part of it that is no box of {shape} starts apart; {_WAY_OUT}"
            )
        return text + self._of_owner(name, shape, program)

    def _of_other_order(self, name: str, param: Tensor, program: Program) -> str:
        """Parameters that do not lie in order: what is even needs none."""
        copy = taken(param, torch.empty(param.shape, dtype=param.dtype))
        if isinstance(copy, Tensor):
            return self._of_values(name, copy)
        if isinstance(copy, Unknown):
            raise CaptureError(f"param {name}: starts from {copy.why}; {_WAY_OUT}")
        text = format_program(copy, tuple(param.shape), lambda values: self._store(name, values))
        return str(text) + self._of_owner(name, tuple(param.shape), copy)

    def _of_owner(self, name: str, shape: tuple[int, ...], program: Program) -> str:
        """` of(name)` for a parameter with the draw of another one, "" for one with its own."""
        draws = [(n, s.draw) for n, s in enumerate(program.steps) if s.kind in RANDOM]
        if any(program.steps[n].kind == "orthogonal" for n, _ in draws):
            self._check_orthogonal(name, shape)
        if len({draw for _, draw in draws}) < len(draws):
            raise CaptureError(
                f"param {name}: a part of it copies random values of another part; {_WAY_OUT}"
            )
        known = {self.owners[d] for _, d in draws if d in self.owners}
        mine = (name, shape if program.plain else ())
        for _, draw in draws:
            self.owners.setdefault(draw, mine)  # type: ignore[arg-type]
        if not known:
            return ""
        owner, owner_shape = min(known)
        if len(draws) > 1 or draws[0][0] or not program.plain or owner_shape != shape:
            raise CaptureError(
                f"param {name}: is computed from the random values of {owner}, in another shape "
                f"or order {shape}; draw it by itself"
            )
        return f" of({owner})"

    def _check_orthogonal(self, name: str, shape: tuple[int, ...]) -> None:
        count = torch.Size(shape).numel()
        if count > _ORTHOGONAL_ELEMENTS:
            raise CaptureError(
                f"param {name}: orthogonal with {count} elements, each rank makes the whole of at "
                f"most {_ORTHOGONAL_ELEMENTS}; {_WAY_OUT}"
            )

    def _of_values(self, name: str, values: Tensor) -> str:
        number = all_equal(values)
        if number is not None:
            return f"constant({number!r})"
        if bool(values.isnan().any()):
            raise CaptureError(f"param {name}: a part of it is never set; {_WAY_OUT}")
        return f"stored(#{self._store(name, values)})"

    def _store(self, name: str, values: Tensor) -> str:
        digest = digest_of(values)
        self.stored[digest] = values.detach().contiguous()
        total = sum(v.numel() * v.element_size() for v in self.stored.values())
        if total > LIMIT_BYTES:
            raise CaptureError(
                f"param {name}: values set by hand take {total} bytes in the plan, the most is "
                f"{LIMIT_BYTES}; compute them in the forward, or import them with --weights"
            )
        return digest


def named_constants(recipes: Iterable[str]) -> set[str]:
    """Digests of the values that recipes name."""
    return {digest for recipe in recipes for digest in re.findall(r"#(\w+)", recipe)}


def told_of(values: list[Tensor]) -> str:
    """The line of the coverage on values that travel in the plan."""
    size = sum(v.numel() * v.element_size() for v in values)
    return f"initial values set by hand travel in the plan: {len(values)} tensors, {size} bytes"


def _small(param: Tensor) -> bool:
    return param.untyped_storage().nbytes() <= LIMIT_BYTES
