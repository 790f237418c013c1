"""Refuse what a forward asks and gets another answer to while it is traced."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from ..errors import CaptureError
from .lines import of_user, short_line

_QUESTIONS = ("is_compiling", "is_exporting")  # of torch.compiler
_DYNAMO = (
    ("variables.torch", "tracing_state_functions"),
    ("variables.torch", "TorchInGraphFunctionVariable._get_handlers"),
    ("trace_rules", "get_torch_obj_rule_map"),
)
_TEXTS = ("__repr__", "__str__", "__format__")


@contextmanager
def no_question_of_tracing(name: str) -> Iterator[None]:
    """Refuse to ask torch.compiler whether a forward is traced, where code of the user asks."""
    made = [table for table in _tables() if table.cache_info().currsize]
    functions = [getattr(torch.compiler, q) for q in _QUESTIONS if hasattr(torch.compiler, q)]
    watched = {id(f): _asked(f, f"asks torch.compiler.{f.__name__}()", name) for f in functions}
    places = [
        (vars(module), key, value)
        for module in (torch.compiler, *modules_of_user())
        for key, value in vars(module).items()
        if id(value) in watched
    ]
    for space, key, plain in places:
        space[key] = watched[id(plain)]
    try:
        yield
    finally:
        for space, key, plain in places:
            space[key] = plain
        for table in _tables():
            if table not in made:  # it holds what was watched, if anything
                table.cache_clear()


def _tables() -> list[Any]:
    """Return what torch.compile keeps, made once, of functions as it finds them first."""
    loaded = [(sys.modules.get(f"torch._dynamo.{module}"), name) for module, name in _DYNAMO]
    return [attrgetter(name)(module) for module, name in loaded if module is not None]


@contextmanager
def no_texts(name: str) -> Iterator[None]:
    """Refuse to write a tensor down, where code of the user does."""
    places = [
        (kind, method, vars(kind)[method])
        for kind in (Tensor, FakeTensor, FunctionalTensor)
        for method in _TEXTS
        if method in vars(kind)
    ]
    for kind, method, plain in places:
        setattr(kind, method, _asked(plain, "writes the values of a tensor down", name))
    try:
        yield
    finally:
        for kind, method, plain in places:
            setattr(kind, method, plain)


def _asked(plain: Callable[..., Any], what: str, name: str) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        path = caller.f_code.co_filename
        if of_user(path):
            if plain.__name__ in _QUESTIONS and (compiled := _compiled_in(caller)):
                raise CaptureError(
                    f"model {name}: {short_line(path, caller.f_lineno)} calls {compiled}, compiled "
                    "by torch.jit.script; take the decorator off"
                )
            raise CaptureError(
                f"model {name}: {short_line(path, caller.f_lineno)} {what}, which is another thing "
                "while the module is traced than in a training step; leave it out"
            )
        return plain(*args, **kwargs)

    return ask


def _compiled_in(caller: FrameType) -> str:
    """Return the function of torch.jit that a frame names, which asks for itself whether it is
    traced; "" where there is none, or the frame's own code asks."""
    names = caller.f_code.co_names + caller.f_code.co_freevars
    spaces = (
        caller.f_globals,
        caller.f_locals,
        *(vars(held) for held in caller.f_locals.values() if hasattr(held, "__dict__")),
    )
    found = (n for n in names for s in spaces if isinstance(s.get(n), torch.jit.ScriptFunction))
    return "" if set(names) & set(_QUESTIONS) else next(found, "")


def modules_of_user() -> list[Any]:
    """Return the modules whose files are of the user's."""
    return [m for m in list(sys.modules.values()) if of_user(getattr(m, "__file__", None) or "<>")]
