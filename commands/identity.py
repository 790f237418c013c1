"""The identity of a model, and the model of an identity."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.ir.capture.export import Traced
    from meshwright.models import ModelSource
    from meshwright.runtime.identity import Identity


def identity_of(source: "ModelSource", traced: "Traced | None" = None) -> "Identity":
    """Return what a model is; its graph is of `traced`, and not known without it."""
    from meshwright.ir.text.graph_text import computation_hash
    from meshwright.runtime.identity import Identity, ModelIdentity

    dtype = "" if traced is None else traced.dtype
    graph = "" if traced is None else computation_hash(traced.graph)
    return Identity(ModelIdentity(source.kind, source.name, dtype, source.config_fields, graph))
