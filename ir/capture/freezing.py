"""Which parameters are frozen: as the module says, and those whose names match a pattern."""

import difflib
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import nn

from ..errors import CaptureError
from ..graph import Graph
from ..phases import Joint
from ..segment import Segmented


def frozen_names(
    module: nn.Module, known_as: dict[str, str], patterns: Iterable[str], model: str
) -> frozenset[str]:
    """Names of the frozen parameters, of a tied one the name that it is known by.

    patterns: shell wildcards on names. known_as: that name by every name of a parameter.
    Raises CaptureError for a pattern that matches no parameter, and where nothing is left to train.
    """
    params = module.named_parameters(remove_duplicate=False)
    found = {known_as[name] for name, param in params if not param.requires_grad}
    for pattern in patterns:
        found |= {known_as[name] for name in _matching(pattern, list(known_as), model)}
    if found.issuperset(known_as.values()):
        raise CaptureError(
            f"model {model}: all of its {len(found)} parameters are frozen, nothing is left to "
            "train; freeze fewer"
        )
    return frozenset(found)


def _matching(pattern: str, names: list[str], model: str) -> list[str]:
    matching = [name for name in names if fnmatchcase(name, pattern)]
    if not matching:
        near = difflib.get_close_matches(pattern, names, 3, 0.3) or names[:3]
        raise CaptureError(
            f"freeze={pattern}: matches none of the {len(names)} parameters of {model}; nearest: "
            f"{', '.join(near)} (shell wildcards allowed)"
        )
    return matching


def parse_freeze(text: str) -> tuple[str, ...]:
    """The patterns of a rule, which commas separate. Raises CaptureError for an empty one."""
    parts = tuple(map(str.strip, text.split(","))) if text else ()
    if not all(parts):
        raise CaptureError(f"freeze={text!r}: a pattern is empty; separate names by one comma each")
    return parts


def without_gradient(
    graph: Graph, segmented: Segmented, joints: dict[str, Graph]
) -> tuple[str, ...]:
    """Names of trainable parameters that autograd gives no gradient; torch does not update them.

    Raises CaptureError where none is left to train.
    """
    reached: set[str] = set()
    for instance in reversed(segmented.instances):
        found = Joint(joints[instance.segment])
        made = zip(found.grads.values(), instance.params, strict=True)
        reached.update(param for gradient, param in made if gradient)
        if not any(found.dxs):
            break
    trainable = [i.ref for i in graph.inputs_of("param") if i.trainable]
    if not reached:
        raise CaptureError(
            f"model {graph.name}: the loss depends on none of its {len(trainable)} trainable "
            "parameters; something detaches them all"
        )
    return tuple(name for name in trainable if name not in reached)


def frozen_in(graph: Graph, names: Iterable[str]) -> Graph:
    """The graph with some more parameters frozen."""
    more = set(names)
    inputs = (replace(i, trainable=i.trainable and i.ref not in more) for i in graph.inputs)
    return replace(graph, inputs=tuple(inputs))
