"""The schema of what a step gives to a model: one input per role, its dtype, its shape.

A role says where the runtime gets the values of a micro-batch from. A model's forward asks for
roles by the names of its parameters; labels and the denominator go to the loss.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from .graph import Graph, Input, Value
from .sizes import B, S, Shape

Role: TypeAlias = Literal[
    "tokens",  # ids in the vocabulary
    "source",  # ids in the vocabulary that an encoder reads, negative where a row has ended
    "images",  # the pixels of a row's image, in the dtype of the model
    "places",  # of the tokens that stand for an image, in their row
    "labels",  # the id that follows each token, negative where none counts
    "positions",  # of each token in its row, from 0
    "denominator",  # labels of the global batch that count
    "draws",  # keys of the dropouts of a segment in a step
    "rows",  # keys of the rows of a micro-batch
]

# Parameters of a forward, beside the first, which takes the tokens.
_ARGUMENTS: dict[str, Role] = {
    "positions": "positions",
    "position_ids": "positions",
    "pos": "positions",
    "source": "source",
    "source_ids": "source",
    "images": "images",
    "pixel_values": "images",
    "places": "places",
}


@dataclass(frozen=True, slots=True)
class StepInput:
    """An input of every step. shape: over B and S, of one micro-batch."""

    role: Role
    dtype: str
    shape: Shape


def role_of(argument: str) -> Role | None:
    """Return the role that a parameter of a forward asks for, None for another name."""
    return _ARGUMENTS.get(argument)


def known_arguments() -> tuple[str, ...]:
    """Return the names by which a forward asks for more than tokens."""
    return tuple(_ARGUMENTS)


def data_input(role: Role, dtype: str = "i64", shape: Shape = (B, S)) -> Input:
    """Return the graph input of a role."""
    return Input(Value(role, dtype, shape), "data", role)


def step_inputs(graphs: Iterable[Graph]) -> tuple[StepInput, ...]:
    """Return the schema of what some graphs read of a step, by the order of roles."""
    found = {i.ref: i.value for graph in graphs for i in graph.inputs_of("data")}
    return tuple(
        StepInput(role, found[role].dtype, found[role].shape)
        for role in get_args(Role)
        if role in found
    )
