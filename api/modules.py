"""Models, by whatever names them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from meshwright.ir.errors import MeshwrightError
from meshwright.models.load import load_model as load_spec
from meshwright.models.source import ModelSource

from .errors import one_class
from .objects import spec_of

if TYPE_CHECKING:
    from torch import nn

Model: TypeAlias = "str | ModelSource | Callable[[], nn.Module]"


@one_class
def load_model(model: Model) -> ModelSource:
    """Return the model that is named; nothing of it is built yet but to see its sizes.

    model: a preset (`llama-7b`), a TOML file of DecoderConfig's fields, `hf:DIR`,
    `hf-images:DIR`, or `py:module:factory`; or such a factory itself, a class or a function that
    needs no arguments and returns a module, which other processes can import. Raises
    MeshwrightError for anything else.
    """
    if isinstance(model, ModelSource):
        return model
    if not isinstance(model, str):
        _check_no_instance(model)
    return load_spec(spec_of(model))


def _check_no_instance(model: object) -> None:
    """Raise MeshwrightError for a module that is built: ranks build their parts by themselves."""
    if not isinstance(model, type) and hasattr(model, "named_parameters"):
        name = type(model).__name__
        raise MeshwrightError(
            f"a {name} that is built cannot be carried to the ranks, which build their shards "
            f"themselves: give a function without arguments that returns it, def build(): return "
            f"{name}(...), as itself or as py:module:build; weights go in by --weights"
        )
