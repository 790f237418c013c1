"""Keep or recompute: which forward values a piece saves for its backward.

Every value that backward reads is a choice. A pin names a rule: `none` saves all that backward
reads directly; `cheap` recomputes what costs no matmul, attention, embedding or communication,
and logits, which are many;
`all` saves nothing beyond the piece's inputs; a comma-separated list of value names recomputes
those that match (shell wildcards allowed) and saves the rest.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.errors import PlanError
from meshwright.ir.graph import Graph, Op
from meshwright.ir.ops.questions import passing
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import Joint, forward_ops
from meshwright.ir.sizes import num_elements
from meshwright.ir.traced import Traced

from ..cost.counts import number

RULES = ("cheap", "all", "none")


@dataclass(frozen=True, order=True)
class SavedSet:
    """Values that an instance keeps for backward, and which of them, or of its input,
    wait for it in the host's memory."""

    saved: tuple[str, ...]
    offloaded: tuple[str, ...] = ()


def saved_values(graph: Graph, rule: str) -> tuple[str, ...]:
    """Names of the forward values to keep, in order of definition."""
    many = passing(graph) if rule == "cheap" else ()
    return _needed(graph, lambda name, op: name in many or _recomputes(rule, op, name))[0]


def row_bytes(traced: Traced, seq: int, rule: str) -> float:
    """Return the bytes of one row that a whole model keeps for its backward under a rule."""
    sizes = {"B": 1, "S": seq}

    def kept(graph: Graph) -> float:
        values = [graph.values[name] for name in saved_values(graph, rule)]
        return sum(number(num_elements(v.shape), sizes) * ITEM_BYTES[v.dtype] for v in values)

    each = {name: kept(graph) for name, graph in traced.joints.items()}
    return sum(each[i.segment] for i in traced.segmented.instances)


def saved_under(
    graph: Graph, again: Callable[[Op], bool]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(saved, reached): what is kept, and all that backward asks for, when `again` says which ops
    may be computed again."""
    return _needed(graph, lambda name, op: again(op))


def candidates(graph: Graph) -> tuple[str, ...]:
    """Values that some rule saves: what backward reads, and what recomputing that reads."""
    return _needed(graph, lambda name, op: True)[1]


def _needed(
    graph: Graph, recomputed: Callable[[str, Op], bool]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(saved, reached) values of a walk from what backward reads, on through what is recomputed."""
    made = {v.name: op for op in forward_ops(graph) for v in op.outputs}
    backward = [op for op in graph.ops if op.output.name not in made]
    waiting = [n for op in backward for n in op.inputs] + list(Joint(graph).results)
    saved: set[str] = set()
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in made:
            continue
        seen.add(name)
        if recomputed(name, made[name]):
            waiting.extend(made[name].inputs)
        else:
            saved.add(name)
    names = tuple(graph.values)
    return tuple(n for n in names if n in saved), tuple(n for n in names if n in seen)


def _recomputes(rule: str, op: Op, name: str) -> bool:
    if rule == "all":
        return True
    if rule == "none":
        return False
    if rule == "cheap":
        return not definition(op).dear or op.attr("kind") == "slice"
    return any(fnmatchcase(name, pattern.strip()) for pattern in rule.split(","))


def check_rule(rule: str, graphs: list[Graph]) -> None:
    """Raise PlanError when a name in a list of values matches none that could be saved."""
    if rule in RULES:
        return
    names = list(dict.fromkeys(name for graph in graphs for name in candidates(graph)))
    for pattern in rule.split(","):
        if not any(fnmatchcase(name, pattern.strip()) for name in names):
            near = difflib.get_close_matches(pattern.strip(), names, 3) or names[:3]
            raise PlanError(
                f"recompute={pattern.strip()}: matches none of the {len(names)} values that "
                f"backward can ask for, such as {', '.join(near)}; "
                f"give {', '.join(RULES)}, or names (wildcards allowed)"
            )
