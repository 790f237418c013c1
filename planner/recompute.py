"""Keep or recompute: which forward values a piece saves for its backward.

Every value that backward reads is a choice. A pin names a rule: `none` saves all that backward
reads directly; `cheap` recomputes what costs no matmul, attention, embedding or communication;
`all` saves nothing beyond the piece's inputs; a comma-separated list of value names recomputes
those that match (shell wildcards allowed) and saves the rest.
"""

from fnmatch import fnmatchcase

from meshwright.ir.errors import PlanError
from meshwright.ir.graph import Graph, Op

RULES = ("cheap", "all", "none")

_EXPENSIVE = (
    "mw.linear",
    "mw.attention",
    "mw.embedding",
    "mw.linear_cross_entropy",
    "mm",
    "bmm",
    "redistribute",
)


def forward_ops(graph: Graph) -> tuple[Op, ...]:
    """Ops that the piece's output needs, in order."""
    needed = {graph.outputs[0]}
    kept = []
    for op in reversed(graph.ops):
        if any(v.name in needed for v in op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    return tuple(reversed(kept))


def saved_values(graph: Graph, rule: str) -> tuple[str, ...]:
    """Names of the forward values to keep, in order of definition."""
    made = {v.name: op for op in forward_ops(graph) for v in op.outputs}
    backward = [op for op in graph.ops if op.output.name not in made]
    wanted = dict.fromkeys(n for op in backward for n in op.inputs if n in made)
    wanted.update(dict.fromkeys(n for n in graph.outputs[1:] if n in made))
    saved: set[str] = set()
    seen: set[str] = set()

    def need(name: str) -> None:
        if name in seen or name not in made:
            return
        seen.add(name)
        if _recomputes(rule, made[name], name):
            for operand in made[name].inputs:
                need(operand)
        else:
            saved.add(name)

    for name in wanted:
        need(name)
    return tuple(name for name in graph.values if name in saved)


def _recomputes(rule: str, op: Op, name: str) -> bool:
    if rule == "all":
        return True
    if rule == "none":
        return False
    if rule == "cheap":
        return op.target not in _EXPENSIVE or op.attr("kind") == "slice"
    return any(fnmatchcase(name, pattern.strip()) for pattern in rule.split(","))


def check_rule(rule: str, graphs: list[Graph]) -> None:
    """Raises PlanError when a name in a list of values matches nothing."""
    if rule in RULES:
        return
    names = {name for graph in graphs for name in graph.values}
    for pattern in rule.split(","):
        if not any(fnmatchcase(name, pattern.strip()) for name in names):
            raise PlanError(
                f"recompute={pattern.strip()}: matches none of the {len(names)} values; "
                f"give {', '.join(RULES)} or names from the plan's pieces (wildcards allowed)"
            )
