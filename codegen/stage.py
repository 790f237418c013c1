"""The file of one stage: pieces, instances, the loops over them, the schedule."""

from meshwright.ir.dtypes import TORCH_NAMES
from meshwright.ir.graph import Graph
from meshwright.ir.mesh import COMPUTE, TENSOR
from meshwright.ir.ops.call import registrations
from meshwright.ir.ops.questions import num_draws
from meshwright.ir.phases import Joint
from meshwright.ir.plan import InstancePlan, Piece, Plan

from .emitters import op_text
from .functions import Functions
from .local import Locals, group_name, identifier, rank_name
from .piece import PieceText, gradient_buffers, operand_inputs
from .writer import Writer

_FORWARD_LOOP = '''
def forward(run, microbatch, x):
    """One micro-batch through this stage: {flow}."""
    for index, item in enumerate(INSTANCES):
        run.prefetch(index + 1)  # gather the next parameters behind this compute
        piece = run.pieces[item.piece]
        operands = run.operands(index, microbatch)
        inputs = ({x}, *operands) if piece.takes_x else operands
        x, saved = piece.forward(run.params(index), *inputs)
        run.keep(index, microbatch, saved)
{offload}        run.release(index)
    return x
'''

_BACKWARD_LOOP = '''
def backward(run, microbatch, dy):
    """The same micro-batch back; gradients are added into buckets and reduced behind compute."""
    for index in reversed({backward}):
        run.prefetch({before})
        piece = run.pieces[INSTANCES[index].piece]
        saved = run.saved(index, microbatch)
{fetch}        dy = piece.backward(run.params(index), saved, dy, run.grads(index))
        run.release(index)
        run.reduce(index)
    return dy
'''

_SPLIT_LOOPS = '''
def input_grad(run, microbatch, dy):
    """The same micro-batch back to the stage's input; what weight_grad needs is handed to it."""
    for index in reversed({backward}):
        run.prefetch({before})
        piece = run.pieces[INSTANCES[index].piece]
        saved = run.saved(index, microbatch)
{fetch}        if piece.backward is not None:  # it makes all gradients at once
            dy = piece.backward(run.params(index), saved, dy, run.grads(index))
            run.reduce(index)
        else:
            dy, handed = piece.input_grad(run.params(index), saved, dy)
            run.hand(index, microbatch, handed)
        run.release(index)
    return dy


def weight_grad(run, microbatch):
    """Gradients of the weights, added into buckets and reduced behind compute."""
    for index in reversed({backward}):
        piece = run.pieces[INSTANCES[index].piece]
        if piece.weight_grad is not None:
            piece.weight_grad(run.handed(index, microbatch), run.grads(index))
            run.reduce(index)
'''

# Where a piece of the stage offloads.
_OFFLOAD = "run.offload(index, microbatch)  # to the host, behind the next forwards"
_FETCH = "run.fetch(index, microbatch)  # the next ones' back from the host, behind this backward"


def stage_source(plan: Plan, stage: int) -> str:
    """The text of `stage_NN.py`."""
    instances = [i for i in plan.instances if i.stage == stage]
    names = dict.fromkeys(i.piece for i in instances)
    pieces = [plan.piece(name) for name in names]
    functions, bodies = Functions(_taken(plan, pieces)), Writer()
    texts = {piece.name: PieceText(piece, plan, functions) for piece in pieces}
    for piece in pieces:
        uses = sum(i.piece == piece.name for i in instances)
        times = "once" if uses == 1 else f"{uses} times"
        bodies.lines("", "", f"# {piece.name}: used {times} on this stage")
        bodies.line("")
        texts[piece.name].write(bodies)
    writer = Writer()
    _head(writer, plan, stage, instances, _imports(plan, pieces))
    _context(writer, plan, pieces)
    functions.write(writer)
    writer.lines(*bodies.text().splitlines())
    _tables(writer, plan, texts, instances, stage)
    flow = "tokens in" if stage == 0 else f"from stage {stage - 1}"
    out = "loss out" if stage == plan.num_stages - 1 else f"to stage {stage + 1}"
    backward = _SPLIT_LOOPS if plan.splits_backward else _BACKWARD_LOOP
    filled = {"flow": f"{flow}, {out}", "offload": "", "fetch": ""}
    filled["x"] = "*x" if plan.boundary_values > 1 else "x"
    filled |= _backward_span(plan, instances)
    if any(piece.offloaded for piece in pieces):
        filled |= {"offload": f"        {_OFFLOAD}\n", "fetch": f"        {_FETCH}\n"}
    for loop in (_FORWARD_LOOP, backward):
        writer.lines("", *loop.format(**filled).rstrip("\n").split("\n"))
    return writer.text()


def _taken(plan: Plan, pieces: list[Piece]) -> set[str]:
    """Return names that functions of units must not have: values, and the stage's functions."""
    graphs = (plan.context, *(piece.graph for piece in pieces))
    values = {identifier(name) for graph in graphs for name in graph.values}
    values |= {name for piece in pieces for name in gradient_buffers(piece.graph).values()}
    loops = {"context", "forward", "backward", "input_grad", "weight_grad"}
    return values | loops | {f"{piece.name}_{loop}" for piece in pieces for loop in loops}


def _backward_span(plan: Plan, instances: list[InstancePlan]) -> dict[str, str]:
    """Return the bounds of the backward loops, which end before the instances that only forward."""
    ends = {p.name: not Joint(p.graph).results for p in plan.pieces}
    first = sum(ends[item.piece] for item in instances)
    if not first:
        return {"backward": "range(len(INSTANCES))", "before": "index - 1"}
    return {
        "backward": f"range({first}, len(INSTANCES))",
        "before": f"max(index - 1, {first})",  # frozen below, and nothing there trains
    }


def _imports(plan: Plan, pieces: list[Piece]) -> list[str]:
    """Imports of the modules that register custom ops; before the others, whose names must win."""
    graphs = (plan.context, *(piece.graph for piece in pieces))
    found = registrations(op for graph in graphs for op in graph.ops)
    return [f"import {m}  # registers {', '.join(ops)}" for m, ops in found.items()]


def _head(
    writer: Writer, plan: Plan, stage: int, instances: list[InstancePlan], imports: list[str]
) -> None:
    first, last = instances[0].name, instances[-1].name
    writer.lines(
        f'"""Stage {stage} of {plan.num_stages}, on pp rank {plan.stage_ranks[stage]}: '
        f"{plan.model}, {first} to {last}.",
        "",
        f"Mesh {plan.mesh}; micro-batches: {plan.num_microbatches} of {plan.micro_batch} rows a",
        f"data-parallel rank; ZeRO {plan.zero}; recompute {plan.recompute}; {plan.schedule_name}.",
        "All ranks of this stage run this text; they differ in TP_RANK and in what their buckets "
        "hold.",
        "Shapes are local. `d_v` is the gradient of `v`, `d_v_from_u` the part of it through `u`,",
        "`d_v_mul` a step towards it.",
        '"""',
        "",
        *imports,
        "import torch",
        "import torch.nn.functional as F",
        "from runtime import collectives, kernels, mesh",
        "from runtime.layout import Instance, Piece",
        "",
        f"B = {plan.micro_batch}  # rows of a micro-batch on this rank",
        f"S = {plan.seq}  # tokens of a row",
        *_axes(plan),
        "DEVICE = mesh.device()",
    )


def _axes(plan: Plan) -> list[str]:
    """This rank's coordinate and group along every axis that shards values, and along the parts of
    a split axis together."""
    parts = plan.mesh.names(TENSOR)
    lines = [
        line
        for name in plan.mesh.names(*COMPUTE)
        for line in (
            f'{rank_name(name)} = mesh.coordinate("{name}")',
            f'{group_name(name)} = mesh.group("{name}")',
        )
    ]
    if len(parts) > 1:
        names = ", ".join(f'"{name}"' for name in parts)
        lines.append(f'{rank_name(".".join(parts))} = mesh.index("{TENSOR}")')
        lines.append(f"{group_name('.'.join(parts))} = mesh.group({names})")
    return lines


def _context(writer: Writer, plan: Plan, pieces: list[Piece]) -> None:
    """Values that depend on no parameter, computed once."""
    wanted = {i.ref for p in pieces for i in p.graph.inputs_of("context")}
    graph = _only(plan.context, wanted)
    local = Locals(graph, {}, plan)
    writer.lines("", "")
    with writer.block("def context(constants):"):
        writer.line(
            '"""Values that depend on no parameter and no token, by name; computed once."""'
        )
        for item in graph.inputs:
            writer.line(f'{identifier(item.value.name)} = constants["{item.ref}"]')
        for op in graph.ops:
            targets = ", ".join(identifier(v.name) for v in op.outputs)
            writer.call(f"{targets} = {op_text(op, local)}")
        items = [f'"{name}": {identifier(name)}' for name in graph.outputs]
        writer.wrapped("return {", items, "}")


def _only(graph: Graph, wanted: set[str]) -> Graph:
    needed, ops = set(wanted), []
    for op in reversed(graph.ops):
        if any(v.name in needed for v in op.outputs):
            ops.append(op)
            needed.update(op.inputs)
    inputs = tuple(i for i in graph.inputs if i.value.name in needed)
    outputs = tuple(n for n in graph.outputs if n in wanted)
    return Graph(graph.name, inputs, tuple(reversed(ops)), outputs)


def _tables(
    writer: Writer,
    plan: Plan,
    texts: dict[str, PieceText],
    instances: list[InstancePlan],
    stage: int,
) -> None:
    writer.lines("", "")
    with writer.block("PIECES = {"):
        for text in texts.values():
            _piece_row(writer, text)
    writer.line("}")
    writer.line("")
    frozen = {b.name for b in plan.buckets if not b.trainable}
    with writer.block("INSTANCES = ("):
        for index, item in enumerate(instances):
            earlier = {b for i in instances[:index] for b in i.buckets}
            reduces = [b for b in item.buckets if b not in earlier and b not in frozen]
            _instance_row(writer, item, reduces)
    writer.lines(")", "")
    writer.lines(
        "# What crosses the stage's borders: (local shape, dtype), None at the ends.",
        f"ENTRY = {_boundary(plan, instances[0], True) if stage else None}",
        f"EXIT = {_boundary(plan, instances[-1], False) if stage < plan.num_stages - 1 else None}",
    )


def _piece_row(writer: Writer, text: PieceText) -> None:
    piece, operands = text.piece, operand_inputs(text.piece)
    with writer.block(f'"{piece.name}": Piece('):
        writer.lines(
            *(f"{function}={piece.name}_{function}," for function in text.functions),
            f"takes_x={bool(piece.graph.inputs_of('activation'))},",
            f"context={_tuple([i.ref for i in operands if i.kind == 'context'])},",
            f"data={_tuple([i.ref for i in operands if i.kind == 'data'])},",
        )
        if draws := num_draws(piece.graph):
            writer.line(f"draws={draws},")
        if text.offloads:
            writer.line(f"offloads=({', '.join(map(str, text.offloads))},),")
    writer.line("),")


def _instance_row(writer: Writer, item: InstancePlan, reduces: list[str]) -> None:
    with writer.block("Instance("):
        writer.lines(f'name="{item.name}",', f'piece="{item.piece}",')
        writer.wrapped("params=(", [f'"{p}"' for p in item.params], ",)," if item.params else "),")
        writer.lines(f"buckets={_tuple(list(item.buckets))},", f"reduces={_tuple(reduces)},")
        if item.first_draw:
            writer.line(f"first_draw={item.first_draw},")
    writer.line("),")


def _tuple(names: list[str]) -> str:
    return "(" + ", ".join(f'"{n}"' for n in names) + ("," if len(names) == 1 else "") + ")"


def _boundary(plan: Plan, item: InstancePlan, entry: bool) -> str:
    """What comes into an instance, or goes out of it; a tuple in plans where several values do."""
    piece = plan.piece(item.piece)
    local, graph = Locals.of(piece, plan), piece.graph
    entries = [i.value for i in graph.inputs_of("activation")]
    values = entries if entry else [graph.values[y] for y in Joint(graph).ys]
    crossing = [f"({local.shape_text(v)}, torch.{TORCH_NAMES[v.dtype]})" for v in values]
    return f"({', '.join(crossing)},)" if plan.boundary_values > 1 else crossing[0]
