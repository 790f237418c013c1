"""The text form of plans: `key: value` lines, then sections. `parse_plan(format_plan(p)) == p`."""

import math
import re
import textwrap
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..dtypes import FLOATS, ITEM_BYTES
from ..errors import ParseError
from ..graph import Constant, text_hash
from ..mesh import parse_mesh
from ..placement import format_placement, parse_placement
from ..plan import (
    DEVICES_PER_NODE,
    Bucket,
    Entry,
    InstancePlan,
    Param,
    Piece,
    Plan,
    grad_dtype,
)
from ..schedule import format_schedule, parse_schedule
from ..sizes import Shape, format_size, parse_size
from .graph_text import format_graph, parse_placed_graph, with_line

HEADER = "meshwright plan v2"
_KEYS = (
    "model", "dtype", "precision", "reduce_dtype", "optimizer", "graph_hash", "cluster",
    "device_type", "device_name", "recompute", "schedule_name",
)  # fmt: skip
_OPTIONAL = ("rounding", "effort")  # lines of their own where they are not empty
_NUMBERS = (
    "devices_per_node", "vocab_size", "global_batch", "micro_batch", "num_microbatches", "seq",
    "zero",
)  # fmt: skip


def format_plan(plan: Plan) -> str:
    lines = [HEADER]
    lines += [f"{key}: {getattr(plan, key)}" for key in (*_KEYS, *_NUMBERS)]
    lines += [f"{key}: {value}" for key in _OPTIONAL if (value := getattr(plan, key))]
    lines += [f"flops_per_token: {plan.flops_per_token!r}", f"mesh: {plan.mesh}"]
    lines += [f"stage_ranks: {' '.join(map(str, plan.stage_ranks))}"]
    sections = [
        ("coverage", "".join(f"{c}\n" for c in plan.coverage)),
        ("costs", "".join(f"{name} {value!r}\n" for name, value in plan.costs)),
        ("schedule", format_schedule(plan.schedule)),
        ("instances", "".join(map(_format_instance, plan.instances))),
        ("params", "".join(map(_format_param, plan.params))),
        ("buckets", "".join(map(_format_bucket, plan.buckets))),
        ("context", format_graph(plan.context, header=False)),
    ]
    sections += [(f"piece {p.name}", _format_piece(p)) for p in plan.pieces]
    if plan.cluster_text:  # indented, as it has sections of its own
        sections.append(("cluster", textwrap.indent(plan.cluster_text, "  ")))
    if plan.identity:
        sections.append(("identity", f"{plan.identity}\n"))
    sections.append(("constants", "".join(format_constant(c) for c in plan.constants)))
    return "\n".join(lines) + "\n" + "".join(f"\n[{name}]\n{body}" for name, body in sections)


def _format_shape(dtype: str, shape: Shape) -> str:
    return f"{dtype}[{', '.join(format_size(s) for s in shape)}]"


def _format_param(param: Param) -> str:
    shape = _format_shape(param.dtype, param.shape)
    return f"{param.name} : {shape} @ {format_placement(param.placement)} init {param.init}\n"


def _format_instance(item: InstancePlan) -> str:
    params, buckets = ", ".join(item.params), ", ".join(item.buckets)
    drawn = f" draws from {item.first_draw}" if item.first_draw else ""
    named = f"{item.name} stage={item.stage} piece={item.piece}"
    return f"{named} params({params}) in({buckets}){drawn}\n"


def _format_bucket(bucket: Bucket) -> str:
    stages = "+".join(map(str, bucket.stages))
    frozen = "" if bucket.trainable else " frozen"
    head = f"{bucket.name} : {bucket.dtype}[{bucket.numel}] stages={stages}{frozen}\n"
    return head + "".join(
        f"  {e.param} at {e.offset}{_partial(e.partial)}{' decay' if e.decay else ''}\n"
        for e in bucket.entries
    )


def _partial(axes: tuple[str, ...]) -> str:
    return f" partial({', '.join(axes)})" if axes else ""


def _format_piece(piece: Piece) -> str:
    lines = f"saved: {_format_names(piece.saved)}\n"
    if piece.offloaded:
        lines += f"offloaded: {_format_names(piece.offloaded)}\n"
    return lines + format_graph(piece.graph, piece.placements, header=False)


def _format_names(names: tuple[str, ...]) -> str:
    return ", ".join(f"%{name}" for name in names)


def format_constant(constant: Constant) -> str:
    """Return the line of a constant."""
    digest, dtype, shape, data = constant
    return f"{digest} : {_format_shape(dtype, shape)} = {data}\n"


def plan_hash(plan: Plan) -> str:
    return text_hash(format_plan(plan))


def parse_plan(text: str) -> Plan:
    """Read a plan; raises ParseError naming the section or line that is not of this version."""
    head, *rest = re.split(r"^\[(.+)\]\n", text, flags=re.MULTILINE)
    lines = head.splitlines()
    if not lines or lines[0] != HEADER:
        raise ParseError(_no_plan(text))
    # A value may be empty, and its line may have lost the blank behind the colon.
    rows = (line.partition(":") for line in lines[1:] if line)
    # Of plans that do not name them.
    keys = {"optimizer": "adamw", "devices_per_node": str(DEVICES_PER_NODE)}
    keys |= dict.fromkeys(("device_type", "device_name", *_OPTIONAL), "")
    keys |= {key: value.removeprefix(" ") for key, _, value in rows}
    sections = {name: body.rstrip("\n") for name, body in zip(rest[::2], rest[1::2], strict=True)}
    try:
        return _build(keys, sections)
    except KeyError as error:
        found = ", ".join(sorted(sections)) or "none"
        raise ParseError(
            f"the plan lacks {error.args[0]!r} (its sections: {found}): it is cut off or damaged; "
            "plan again"
        ) from None


def _no_plan(text: str) -> str:
    """Return what to say of a text of another version, or of none: nothing of what it holds."""
    if older := re.match(r"meshwright plan v\d+\b", text):
        return (
            f"it begins with {older[0]!r}, this reads {HEADER!r}; plan again with: meshwright plan "
            "MODEL --cluster C -o PLAN"
        )
    what = "it is no plan" if text else "it is empty"
    return f"{what}: the first line of a plan is {HEADER!r}"


def _build(keys: dict[str, str], sections: dict[str, str]) -> Plan:
    pieces = [
        _parse_piece(name.removeprefix("piece "), body)
        for name, body in sections.items()
        if name.startswith("piece ")
    ]
    keys.setdefault("reduce_dtype", grad_dtype(keys["dtype"], keys["precision"]))
    fields: dict[str, Any] = {key: keys[key] for key in (*_KEYS, *_OPTIONAL)}
    if keys["reduce_dtype"] not in FLOATS:
        raise ParseError(f"reduce_dtype: {keys['reduce_dtype']!r}; one of {', '.join(FLOATS)}")
    fields.update({key: _number(keys, key, int) for key in _NUMBERS})
    return Plan(
        **fields,
        flops_per_token=_number(keys, "flops_per_token", float),
        mesh=parse_mesh(keys["mesh"]),
        stage_ranks=_stage_ranks(keys["stage_ranks"]),
        coverage=tuple(sections["coverage"].splitlines()),
        costs=_rows(sections, "costs", _parse_cost),
        identity=sections.get("identity", ""),
        cluster_text=_cluster_text(sections.get("cluster", "")),
        schedule=parse_schedule(sections["schedule"]),
        instances=_rows(sections, "instances", _parse_instance),
        params=_rows(sections, "params", _parse_param),
        buckets=_parse_buckets(sections),
        context=parse_placed_graph(sections["context"])[0],
        pieces=tuple(pieces),
        constants=_rows(sections, "constants", parse_constant),
    )


def _cluster_text(body: str) -> str:
    return f"{textwrap.dedent(body)}\n" if body else ""


def _number(keys: dict[str, str], key: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(keys[key])
    except ValueError:
        raise ParseError(f"{key}: {keys[key]!r} is no {kind.__name__}") from None


def _stage_ranks(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+( \d+)*", text):
        raise ParseError(f"stage_ranks: {text!r}; expected the pp rank of every stage, such as 0 1")
    return tuple(map(int, text.split()))


def _rows(sections: dict[str, str], name: str, parse: Callable[[str], Any]) -> tuple[Any, ...]:
    """The lines of a section, each parsed. Raises ParseError with the section and the line."""
    found = []
    for line in sections[name].splitlines():
        try:
            found.append(parse(line))
        except (ValueError, KeyError) as error:
            raise ParseError(f"[{name}] {with_line(line, error)}") from None
    return tuple(found)


def _parse_cost(line: str) -> tuple[str, float]:
    name, _, value = line.partition(" ")
    return name, float(value)


def _parse_shape(text: str) -> tuple[str, Shape]:
    dtype, _, sizes = text.removesuffix("]").partition("[")
    if dtype not in ITEM_BYTES:
        raise ParseError(f"unknown dtype {dtype!r} in {text!r}; known: {', '.join(ITEM_BYTES)}")
    return dtype, tuple(parse_size(s) for s in sizes.split(", ") if s)


def _parse_param(line: str) -> Param:
    match = re.fullmatch(r"(\S+) : (\w+\[.*?\]) @ (\[.*\]) init (.+)", line)
    if match is None:
        raise ParseError(f"{line!r}: expected name : dtype[shape] @ placement init recipe")
    dtype, shape = _parse_shape(match[2])
    return Param(match[1], dtype, shape, parse_placement(match[3]), match[4])


def _parse_instance(line: str) -> InstancePlan:
    match = re.fullmatch(
        r"(\S+) stage=(\d+) piece=(\S+) params\((.*)\) in\((.*?)\)(?: draws from (\d+))?", line
    )
    if match is None:
        raise ParseError(
            f"{line!r}: expected name stage=N piece=P params(...) in(...) [draws from N]"
        )
    params, buckets = (tuple(n for n in match[k].split(", ") if n) for k in (4, 5))
    return InstancePlan(match[1], match[3], int(match[2]), params, buckets, int(match[6] or 0))


def _parse_buckets(sections: dict[str, str]) -> tuple[Bucket, ...]:
    found: list[Bucket] = []
    for row in _rows(sections, "buckets", _parse_bucket_line):
        if isinstance(row, Bucket):
            found.append(row)
        elif found:
            found[-1] = replace(found[-1], entries=(*found[-1].entries, row))
        else:
            raise ParseError(f"[buckets] {row.param} stands before the first bucket")
    return tuple(found)


def _parse_bucket_line(line: str) -> Bucket | Entry:
    """A bucket's head, or one of its entries."""
    if line.startswith("  "):
        match = re.fullmatch(r"  (\S+) at (\d+)(?: partial\(([^)]*)\))?( decay)?", line)
        if match is None:
            raise ParseError(f"{line!r}: expected name at offset [partial(axes)] [decay]")
        partial = tuple(match[3].split(", ")) if match[3] else ()
        return Entry(match[1], int(match[2]), partial, bool(match[4]))
    match = re.fullmatch(r"(\S+) : (\w+)\[(\d+)\] stages=([\d+]+)( frozen)?", line)
    if match is None:
        raise ParseError(f"{line!r}: expected name : dtype[numel] stages=N [frozen]")
    stages = tuple(int(s) for s in match[4].split("+"))
    return Bucket(match[1], match[2], int(match[3]), stages, (), not match[5])


def _parse_piece(name: str, body: str) -> Piece:
    first, _, text = body.partition("\n")
    saved = _parse_names(first, "saved:")
    offloaded: tuple[str, ...] = ()
    if text.startswith("offloaded:"):
        second, _, text = text.partition("\n")
        offloaded = _parse_names(second, "offloaded:")
    graph, placements = parse_placed_graph(text)
    kept = {*saved, *(i.value.name for i in graph.inputs_of("activation"))}
    if lost := [value for value in offloaded if value not in kept]:
        raise ParseError(f"[piece {name}] %{lost[0]} is offloaded, but not kept for backward")
    bare = [value for value in graph.values if value not in placements]
    if bare:
        raise ParseError(f"[piece {name}] %{bare[0]} has no placement; {len(bare)} values lack one")
    return Piece(name, graph, placements, saved, offloaded)


def _parse_names(line: str, key: str) -> tuple[str, ...]:
    names = line.removeprefix(key).split(",")
    return tuple(n.strip().removeprefix("%") for n in names if n.strip())


def parse_constant(line: str) -> Constant:
    """Read the line of a constant. Raises ParseError, also where its elements are cut off."""
    digest, _, rest = line.partition(" : ")
    text, _, data = rest.partition(" = ")
    dtype, shape = _parse_shape(text)
    try:
        held = len(b64decode(data, validate=True))
    except ValueError:
        held = len(data) * 3 // 4
    needed = math.prod(map(int, shape)) * ITEM_BYTES[dtype]
    if held != needed or len(data) % 4:
        raise ParseError(
            f"constant {digest} holds {held} bytes, {text} takes {needed}: the plan is cut off or "
            "damaged; plan again"
        )
    return digest, dtype, shape, data
