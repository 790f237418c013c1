"""Capture: nn.Module -> Graph, through torch.export, without weights or a GPU.

The module's forward takes tokens [B, S], and positions [B, S] where it asks for them, and returns
logits [B, S, V] (or an object with .logits). The graph takes these, labels and the loss
denominator, and returns the loss: the last linear (and its soft-cap) is joined with the
cross-entropy into one semantic op. Behind the loss it returns the load of the model's routers, if
their loss is part of the model's: router_load.py says what is made of it.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node

from ..errors import CaptureError, MeshwrightError
from ..graph import Attr, Constant, Graph, Input, Op, Value, prune, text_hash, verify
from ..inputs import Role, data_input
from ..lengths import Lengths
from ..ops.dropout import rows_in
from ..ops.patterns import head_of
from ..ops.questions import draws_from
from ..ops.registry import named
from ..segment import Segmented, segment
from ..sizes import B, S, Shape, Size, evaluate, format_size
from ..text.graph_text import format_graph
from ..traced import Traced, Ways
from . import semantic
from .collector import rarely_collected
from .constants import digest_of, encode
from .early import early
from .exported import exported_for, reason_of
from .forwards import Logits, roles_of
from .freezing import frozen_in, frozen_names, without_gradient
from .functional import (
    Functionalise,
    drop_idle_detaches,
    inline_regions,
)
from .fx import FxReader, short_dtype, torch_dtype
from .initialisers import build_fake, named_constants, told_of
from .joint import joint
from .lines import source_of
from .nodes import Drawn
from .own_loss import LossTotal, OwnLoss
from .plain_attention import attended
from .promotion import cast_integers, name_dtypes, state_numbers
from .remarks import ALL_FORWARDS, HOLDS_LOGITS, holds_scores, kept_apart, left_out
from .row_ops import check_row_ops
from .rows import check_rows
from .steps import steps_of, symbol_of
from .widening import floats_as_in

# Names of parameters, as the text of plans and programs can hold them.
_NAME = re.compile(r"[\w.:+/@-]+")


@dataclass(frozen=True)
class Captured:
    """A graph, the constants it names by hash, and what capture could not keep silently."""

    graph: Graph
    constants: tuple[Constant, ...]
    warnings: tuple[str, ...] = ()
    lengths: Lengths = Lengths()
    longest_apart: bool = False
    ways: Ways = ()


@rarely_collected()
def trace(
    build: Callable[[], nn.Module],
    name: str,
    dtype: str,
    vocab_size: int,
    freeze: tuple[str, ...] = (),
    loss: OwnLoss | None = None,
    seq: int | None = None,
    alone: bool = False,
) -> Traced:
    """Capture, cut into segments, and trace each unique segment's joint graph.

    freeze: patterns of names of parameters that are not trained, beside those that the module says.
    loss: of the user's own; None: the cross-entropy. seq: a length of rows that the model shall
    take, None for any. alone: whether rows have that length alone, which is a number in the graph.
    Raises CaptureError, in one line, for whatever cannot be captured.
    """
    try:
        return _traced(build, name, dtype, vocab_size, freeze, loss, seq, alone)
    except MeshwrightError:
        raise
    except Exception as error:
        of_models = type(error).__module__.startswith("meshwright.")  # says it in our own words
        kind = "" if of_models else f"{type(error).__name__}: "
        raise CaptureError(f"model {name} cannot be captured: {kind}{reason_of(error)}") from error


def _traced(
    build: Callable[[], nn.Module],
    name: str,
    dtype: str,
    vocab_size: int,
    freeze: tuple[str, ...],
    loss: OwnLoss | None,
    seq: int | None,
    alone: bool,
) -> Traced:
    captured = capture(build, name, dtype, freeze, loss, seq, alone)
    graph, warnings, lengths = captured.graph, captured.warnings, captured.lengths
    segmented, joints = segments_of(graph, lengths)
    if idle := without_gradient(graph, segmented, joints):
        graph = frozen_in(graph, idle)
        segmented, joints = segments_of(graph, lengths)
        warnings += tuple(f"param {p}: the loss does not depend on it, not trained" for p in idle)
    return Traced(
        name,
        dtype,
        vocab_size,
        text_hash(format_graph(graph)),
        graph,
        segmented,
        joints,
        captured.constants,
        warnings,
        captured.lengths,
        captured.longest_apart,
        captured.ways,
    )


def segments_of(graph: Graph, lengths: Lengths) -> tuple[Segmented, dict[str, Graph]]:
    """The graph cut, and the joint graph of each unique segment. lengths: of the graph's rows."""
    segmented = segment(graph)
    return segmented, {s.name: joint(s, lengths) for s in segmented.segments}


def capture(
    build: Callable[[], nn.Module],
    name: str,
    dtype: str,
    freeze: tuple[str, ...] = (),
    loss: OwnLoss | None = None,
    seq: int | None = None,
    alone: bool = False,
) -> Captured:
    """Trace the module that `build` makes, its parameters in `dtype` ("f32", "bf16", "f64").

    In f64, casts to any float become casts to float64, and buffers of floats are widened: a narrow
    detour would hide real errors in the float64 comparison (tests compare with the plain model
    under the same rule).
    Raises CaptureError where the module cannot be exported, or binds B or S to a number, and where
    a pattern of `freeze` matches nothing or all.
    """
    module, recipes, tied, stored = build_fake(build, torch_dtype(dtype))
    frozen = frozen_names(module, tied, freeze, name)
    roles = roles_of(module, name)
    arguments = tuple(roles.values())

    def read(wrapped: Logits, inputs: tuple[Role, ...]) -> Captured:
        with floats_as_in(dtype):
            exported = exported_for(wrapped, name, seq, alone)
        reader = _Reader(
            program=exported.program,
            name=name,
            roles=inputs,
            recipes=recipes,
            stored=stored,
            tied=tied,
            frozen=frozen,
            promote=dtype == "f64",
            own_loss=loss,
            lengths=exported.lengths,
            step=exported.lengths.step,
            length=exported.lengths.least if alone else S,
        )
        found = replace(
            reader.read(),
            lengths=exported.lengths,
            longest_apart=exported.longest_apart,
            ways=exported.ways,
        )
        said = (*map(left_out, wrapped.seen.unread), *kept_apart(wrapped.seen.kept))
        return replace(found, warnings=(*found.warnings, *said))

    if loss is None:
        return read(Logits(module, arguments), tuple(roles))
    found = read(LossTotal(module, arguments, loss), (*roles, "labels"))
    return replace(found, warnings=(*found.warnings, f"{HOLDS_LOGITS} is {loss}"))


@dataclass(kw_only=True)
class _Reader(FxReader):
    """Turns one exported program into a Graph."""

    program: ExportedProgram
    name: str
    roles: tuple[Role, ...]
    recipes: dict[str, str]
    stored: dict[str, Tensor]
    tied: dict[str, str]
    frozen: frozenset[str]
    own_loss: OwnLoss | None
    lengths: Lengths
    length: Size  # of a row
    params: dict[str, str] = field(default_factory=dict)  # value by logical name
    constants: dict[str, Tensor] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    drawn: int = 0  # dropouts so far

    def read(self) -> Captured:
        state = self._state()
        inline_regions(self.program.graph_module, state)
        Functionalise(self.program.graph, state).run()
        params = set(self.program.graph_signature.inputs_to_parameters)
        drop_idle_detaches(self.program.graph, params)
        cast_integers(self.program.graph)
        state_numbers(self.program.graph)
        name_dtypes(self.program.graph)
        self._inputs()
        outputs = self._outputs()
        graph = Graph(self.name, tuple(self.inputs), tuple(self.ops), outputs)
        graph = attended(graph, self.constants)
        graph = verify(draws_from(_without_unused_inputs(early(prune(graph))), 0))
        self._check_draws(graph)
        check_rows(graph)
        used = {i.ref for i in graph.inputs_of("constant")}
        initial = named_constants([i.init for i in graph.inputs_of("param")])
        every = self.constants | self.stored
        kept = [encode(ref, t) for ref, t in sorted(every.items()) if ref in used | initial]
        if initial:
            self.warnings.append(told_of([every[ref] for ref in sorted(initial)]))
        return Captured(graph, tuple(kept), tuple(self.warnings))

    def _outputs(self) -> tuple[str, ...]:
        """Read every op up to the loss, and return the names of it and of the load of routers, if
        there is one; refuse an op that mixes rows before the loss."""
        given = self.program.graph, self.symbols, self.lengths, self._labels()
        try:
            outputs = self._read_ops()
        except MeshwrightError:
            check_row_ops(*given)
            raise
        check_row_ops(*given)
        return outputs

    def _read_ops(self) -> tuple[str, ...]:
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self.call(node)
        output = next(n for n in self.program.graph.nodes if n.op == "output")
        part, *load = (str(self.values[node]) for node in output.args[0])
        self.warnings += [ALL_FORWARDS] * bool(load)
        return self._ending(part), *load

    def _labels(self) -> Node | None:
        """The node of the labels, where the program takes them."""
        named = self.program.graph_signature.user_inputs
        given = [n for n in self.program.graph.nodes if n.name in named and n.op == "placeholder"]
        return next(
            (n for n, role in zip(given, self.roles, strict=True) if role == "labels"), None
        )

    def _check_draws(self, graph: Graph) -> None:
        for op in graph.ops:
            if op.output.name in self.random:
                raise CaptureError(
                    f"{op.target} at {op.source} draws at random, and a program draws nothing in "
                    "forward but dropout: draw with F.dropout, of ones for instance, or take it out"
                )

    def _state(self) -> dict[Node, str]:
        """What outlives a step, by its node: parameters, buffers, and inputs of the model."""
        signature = self.program.graph_signature
        named = {
            n: f"parameter {p.removeprefix('module.')}"
            for n, p in signature.inputs_to_parameters.items()
        }
        named |= {
            n: f"buffer {b.removeprefix('module.')}" for n, b in signature.inputs_to_buffers.items()
        }
        places = (n for n in self.program.graph.nodes if n.op == "placeholder")
        return {n: named.get(n.name, "an input of the model") for n in places}

    @property
    def rows(self) -> Shape:
        """Return the shape of the tokens."""
        return B, self.length

    def _inputs(self) -> None:
        signature = self.program.graph_signature
        params, buffers = signature.inputs_to_parameters, dict(signature.inputs_to_buffers)
        buffers.update(signature.inputs_to_lifted_tensor_constants)
        placeholders = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        tokens, *others = (n for n in placeholders if n.name in signature.user_inputs)
        rows, length = tokens.meta["val"].shape
        sizes = (steps_of(rows, 1), B), (steps_of(length, self.step), symbol_of(self.step))
        self.symbols = {size: own for size, own in sizes if size.is_Symbol}
        free = len(set(self.rows) & {B, S})
        if len(self.symbols) != free:
            raise CaptureError(
                f"model {self.name} binds the batch or sequence size to a number: tokens have "
                f"shape {tuple(tokens.meta['val'].shape)}, expected {free} free sizes"
            )
        for role in ("tokens", "labels"):
            self._data(data_input(role, shape=self.rows))
        self.values[tokens] = "tokens"
        for role, node in zip(self.roles[1:], others, strict=True):
            if role != "labels":
                self._data(Input(self.value(node.meta["val"], role), "data", role))
            self.values[node] = role
        for node in placeholders:
            if node.name in params:
                self._param(node, params[node.name].removeprefix("module."))
            elif node.name in buffers:
                self._constant(node, buffers[node.name])

    def _data(self, item: Input) -> None:
        self.inputs.append(item)
        self.taken.add(item.value.name)

    def _param(self, node: Node, name: str) -> None:
        name = self.tied[name]
        if name in self.params:
            self.values[node] = self.params[name]
            return
        if not _NAME.fullmatch(name):
            raise CaptureError(
                f"model {self.name}: a parameter is called {name!r}; a plan takes names of "
                "letters, digits and . _ - : + / @, so rename it"
            )
        init = self.recipes.get(name, "")
        if not init:
            init = "normal(0.0, 0.02)"
            self.warnings.append(f"param {name}: no initialiser seen, takes {init}")
        value = self.value(node.meta["val"], self.fresh(name))
        self.inputs.append(Input(value, "param", name, init, name not in self.frozen))
        self.values[node] = self.params[name] = value.name

    def _constant(self, node: Node, name: str) -> None:
        signature = self.program.graph_signature
        if name in signature.inputs_to_lifted_tensor_constants.values():
            tensor = self.program.constants[name]
        else:
            tensor = self.program.state_dict.get(name)
            tensor = self.program.constants[name] if tensor is None else tensor
        if self.promote and tensor.is_floating_point():
            tensor = tensor.double()
        if isinstance(tensor, FakeTensor):
            raise CaptureError(
                f"model {self.name}: buffer {name.removeprefix('module.')} holds what was computed "
                "from a parameter when the module was built; compute it in forward, or from values "
                "of its own"
            )
        short_dtype(tensor.dtype, f"buffer {name.removeprefix('module.')}")
        digest = digest_of(tensor)
        self.constants[digest] = tensor.detach().clone()
        value = self.value(tensor, self.fresh(name.removeprefix("module.")))
        self.inputs.append(Input(value, "constant", digest))
        self.values[node] = value.name

    def draw(self, node: Node, value: Tensor, drawn: Drawn) -> None:
        """An op by numbered draws: its number counts those of the forward, dead ones too."""
        out = self.value(value, self.fresh(self.value_name(node)))
        given = ["draws"] if rows_in(out.shape) is None else ["draws", "rows"]
        for item in (data_input("draws", shape=(0, 3)), data_input("rows", shape=(B, 2))):
            if item.value.name in given and item not in self.inputs:
                self.inputs.append(item)
        operands = ["" if n is None else str(self.values[n]) for n in drawn.operands]
        attrs = {"p": drawn.p, "number": self.drawn} | {k: self._attr(v) for k, v in drawn.attrs}
        self._emit(drawn.target, (*operands, *given), (out,), source_of(node), **attrs)
        self.values[node] = out.name
        self.drawn += 1
        said = holds_scores(self.where(node))
        holds = named(drawn.target).scores or out.shape[-2:] == (self.length, self.length)
        self.warnings += [said] * (holds and said not in self.warnings)

    def _head(self, logits: str) -> tuple[str, str]:
        """Emit the fused loss of a head; return its log-sum-exps and the labels' logits."""
        head = head_of(logits, {op.output.name: op for op in self.ops})
        op, softcap = head.linear, head.softcap
        if op is None:
            last = f"{head.last.target} at {head.last.source}" if head.last else "no op"
            self.warnings.append(f"{HOLDS_LOGITS} ends in {last}")
            return self._dense(self._value_of(logits))
        x, w = map(self._value_of, op.inputs)
        stats = "f64" if self.promote or x.dtype == "f64" else "f32"
        lse, picked = (
            Value("loss.lse", stats, self.rows),
            Value("loss.picked", stats, self.rows),
        )
        made = lse, picked, Value("loss.logits", x.dtype, (*self.rows, w.shape[0]))
        given = (*op.inputs, "labels")
        self._emit("mw.linear_cross_entropy", given, made, op.source, softcap=softcap)
        return lse.name, picked.name

    def _dense(self, logits: Value) -> tuple[str, str]:
        """Emit the log-sum-exps of logits that are held, and the labels' logits: of those that do
        not count, -100, the first entry's."""
        stats = "f64" if logits.dtype == "f64" else "f32"
        if logits.dtype != stats:
            logits = self._made(
                "to.dtype", (logits.name,), replace(logits, dtype=stats), dtype=stats
            )
        labels = self._made("clamp", ("labels",), Value("clamp", "i64", self.rows), min=0)
        at = self._made(
            "unsqueeze", (labels.name,), Value("unsqueeze", "i64", (*self.rows, 1)), dim=-1
        )
        picked = Value("gather", stats, (*self.rows, 1))
        named = {"dim": -1, "@operands": ("self", "index=")}
        picked = self._made("gather", (logits.name, at.name), picked, **named)
        picked = self._made(
            "squeeze.dim", (picked.name,), Value("squeeze", stats, self.rows), dim=-1
        )
        lse = Value("logsumexp", stats, self.rows)
        return self._made("logsumexp", (logits.name,), lse, dim=(-1,)).name, picked.name

    def _made(self, target: str, inputs: tuple[str, ...], value: Value, **attrs: Attr) -> Value:
        """Emit an op of the loss, its value under a name that none has yet; return the value."""
        value = replace(value, name=self.fresh(target.partition(".")[0]))
        self._emit(target, inputs, (value,), "", **attrs)
        return value

    def _ending(self, made: str) -> str:
        """Emit what makes the loss of the value that the program returns; return its name."""
        if self.own_loss is None:
            self._check_logits(self._value_of(made))
            self._cross_entropy(*self._head(made))
        elif self.own_loss.is_mean:
            self._divided(made)
        else:
            return made
        return "loss"

    def _check_logits(self, logits: Value) -> None:
        """Raise CaptureError for logits that are not one row of the vocabulary for each token."""
        some = (
            {"B": 7, "S": 13 * self.step},
            {"B": 5, "S": 3 * self.step},
        )  # sizes that are equal may be written otherwise
        found = [[evaluate(size, sizes) for size in logits.shape[:-1]] for sizes in some]
        if found != [[evaluate(size, sizes) for size in self.rows] for sizes in some]:
            shape = ", ".join(map(format_size, logits.shape))
            raise CaptureError(
                f"model {self.name}: its forward returns logits of shape [{shape}]; return "
                "[B, S, V], one for each token and entry of the vocabulary"
            )

    def _divided(self, total: str) -> None:
        """Emit the loss of a total: over the labels of the global batch."""
        dtype = self._value_of(total).dtype
        self.inputs.append(data_input("denominator", dtype, ()))
        self._emit(
            "div.Tensor", (total, "denominator"), (Value("loss", dtype, ()),), self.ops[-1].source
        )

    def _cross_entropy(self, lse: str, picked: str) -> None:
        """Emit the mean over the labels that count. lse, picked: names of values [B, S]."""
        stats, source = self._value_of(lse).dtype, self.ops[-1].source
        self._emit("sub.Tensor", (lse, picked), (Value("loss.nll", stats, self.rows),), source)
        self._emit(
            "ne.Scalar",
            ("labels",),
            (Value("loss.valid", "bool", self.rows),),
            source,
            other=semantic.IGNORED_LABEL,
        )
        self._emit(
            "where.ScalarOther",
            ("loss.valid", "loss.nll"),
            (Value("loss.masked", stats, self.rows),),
            source,
            other=0.0,
        )
        self._emit("sum", ("loss.masked",), (Value("loss.sum", stats, ()),), source)
        self._divided("loss.sum")

    def _emit(
        self,
        target: str,
        inputs: Iterable[str],
        outputs: Iterable[Value],
        source: str,
        **attrs: Attr,
    ) -> None:
        self.ops.append(Op(target, tuple(inputs), tuple(outputs), tuple(attrs.items()), source))

    def _value_of(self, name: str) -> Value:
        known = [i.value for i in self.inputs] + [v for op in self.ops for v in op.outputs]
        return next(v for v in known if v.name == name)


def _without_unused_inputs(graph: Graph) -> Graph:
    used = {name for op in graph.ops for name in op.inputs}
    inputs = tuple(i for i in graph.inputs if i.value.name in used or i.kind == "data")
    return Graph(graph.name, inputs, graph.ops, graph.outputs)
