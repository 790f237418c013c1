"""Prove a capture: the program that it becomes computes what the module computes.

In float64 the emitted program of one rank runs with all values kept, with all recomputed and with
its backward in two, at several sizes, on one micro-batch and on several, on rows in another order
and on other weights each time; its loss and every gradient equal the module's to 1e-9. In the
plan's dtype they are as near to float64 as three times the module's own rounding.
"""

import math
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from meshwright.ir.capture.forwards import roles_of
from meshwright.ir.capture.fx import torch_dtype
from meshwright.ir.capture.images import image_sizes
from meshwright.ir.capture.own_loss import OwnLoss
from meshwright.ir.capture.ways import parted
from meshwright.ir.dtypes import FLOATS, ITEM_BYTES
from meshwright.ir.errors import ProofError
from meshwright.ir.graph import Graph
from meshwright.ir.lengths import Lengths
from meshwright.ir.sizes import evaluate, num_elements
from meshwright.ir.traced import Traced

from .draws import sites_of
from .locate import first_difference, first_mixed_rows
from .memory import keep_freed
from .module_run import (
    NoNumberError,
    built,
    drawn_buffers,
    moved_by,
    run_module,
    ways_of,
    weights_of,
)
from .one_rank import Variant, one_rank_plan
from .outcome import Batch, Outcome, random_batch
from .program import run_program
from .widen import widened

TOLERANCE = 1e-9  # of the largest element, in float64
NOISE = 3.0  # times the module's own rounding, in the plan's dtype
# Below this share of the largest gradient of all, a parameter's gradient counts as zero.
_ZERO = 1e-4
# The same where both sides round: the norm that errors are at least set in relation to.
_SMALL = 1e-2
# Times how far a gradient moves with the last digits of weights: what a small one may be off by.
_LAST_DIGITS = 10.0

_LENGTHS = (5, 12)
_MANY = 32  # tokens of a row in the batch of a small model
_SMALL_BYTES = 2**26
_DRAWS = (9, 10, 11)  # of weights and batches in the plan's dtype
_UNFOLLOWED = (
    "Its forward does what capture does not follow; train it with PyTorch, or report it with the "
    "module"
)
_NAMED = 64  # numbers of a graph, at most, that are drawn as tokens
_MOVED = 0.03  # of weights from their initial values, as a standard deviation


def variants(lengths: Lengths, size_bytes: int = 0) -> tuple[Variant, ...]:
    """Return the ways in which a program is run.

    lengths: of the rows that it takes. size_bytes: of the parameters in float64; a small
    model runs a batch of some hundred tokens, too, in which what counts tokens shows. One is of one
    row, which a module may compute in another way. The last has the sizes of the first: what a
    module keeps by size of the first weights shows.
    """
    short, long = (lengths.near(max(n, lengths.least + k)) for k, n in enumerate(_LENGTHS))
    return (
        Variant(2, short, 1, keeps=True),
        Variant(1, long, 3, keeps=False),
        Variant(2, long, 3, keeps=True, splits=True)
        if size_bytes > _SMALL_BYTES
        else Variant(8, lengths.near(_MANY), 2, keeps=True, splits=True),
        Variant(1, long, 1, keeps=True),
        Variant(2, short, 1, keeps=True),
    )


@dataclass(frozen=True)
class Subject:
    """The model that is proven: its name, how to build it, its sizes, and a loss of its own.

    freezes: whether the capture trains fewer parameters than the module does.
    """

    name: str
    build: Callable[[], nn.Module]
    vocab_size: int
    max_seq: int | None
    own_loss: OwnLoss | None = None
    freezes: bool = False


def parameter_bytes(traced: Traced) -> int:
    """Bytes of all parameters of a captured model."""
    values = [i.value for i in traced.graph.inputs_of("param")]
    return sum(evaluate(num_elements(v.shape), {}) * ITEM_BYTES[v.dtype] for v in values)


def named_tokens(traced: Traced) -> tuple[int, ...]:
    """Return the tokens by whose ids a module may treat them: what it does with one shows only
    where that is drawn. Those that integers are compared or calculated with, and those beside, and
    the elements of short tables of integers."""
    values = traced.graph.values
    numbers: set[int] = set()
    for op in traced.graph.ops:
        if any(values[name].dtype not in FLOATS for name in op.inputs if name):
            numbers.update(int(n) for _, n in op.attrs if _is_whole(n))
    for _, dtype, shape, data in traced.constants:
        if dtype not in FLOATS and math.prod(map(int, shape)) <= _NAMED:
            table = torch.frombuffer(bytearray(b64decode(data)), dtype=torch_dtype(dtype))
            numbers.update(map(int, table.tolist()))
    near = {n + step for n in numbers for step in (-1, 0, 1)}
    return tuple(sorted(n for n in near if 0 <= n < traced.vocab_size))[:_NAMED]


def _is_whole(number: object) -> bool:
    return isinstance(number, int) or (isinstance(number, float) and number.is_integer())


def prove(subject: Subject, traced: Traced) -> str:
    """Raise ProofError where the captured model computes anything else than its module; return
    where the module takes another way when it evaluates, "" where it takes the same.

    traced: the capture in the plan's dtype.
    """
    # Its buffers have the digits that the capture has.
    module = built(subject.build, torch_dtype(traced.dtype))
    _check_shared(module, subject.name)
    module = module.double()
    origin = {name: weight.clone() for name, weight in weights_of(module).items()}
    size_bytes = sum(weight.nbytes for weight in origin.values())
    if size_bytes > _SMALL_BYTES:
        keep_freed()
    with _threads_for(size_bytes):
        try:
            return _prove_on(subject, traced, module, origin, _MOVED)
        except NoNumberError:  # a logarithm of a weight, for instance; its own weights may do
            return _prove_on(subject, traced, module, origin, 0.0)


def _check_shared(module: nn.Module, name: str) -> None:
    """Refuse two parameters on one memory: a program has one there, with one gradient."""
    first: dict[int, str] = {}
    for path, param in module.named_parameters():
        known = first.setdefault(param.untyped_storage().data_ptr(), path)
        if known != path and param.numel():
            raise ProofError(
                f"model {name}: {known} and {path} are two parameters on one memory, each with a "
                "gradient and an update of its own; use one parameter twice, or copy it"
            )


@contextmanager
def _threads_for(size_bytes: int) -> Iterator[None]:
    """Compute a small module on one thread: several gain nothing there, and on a busy machine they
    wait for each other at every op, up to six times as long (seen on two cores)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if size_bytes <= _SMALL_BYTES else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _prove_on(
    subject: Subject, traced: Traced, module: nn.Module, origin: dict[str, Tensor], moved: float
) -> str:
    """Each way of running has weights of its own: what a module keeps of the first ones shows."""
    wide, plan_dtype = widened(traced), torch_dtype(traced.dtype)
    ways = variants(_lengths(subject, traced), parameter_bytes(wide))
    if traced.longest_apart:
        longest = _lengths(subject, traced).most
        assert longest is not None
        ways += (Variant(1, longest, 1, keeps=True),)
    for number, variant in enumerate(ways):
        weights = moved_by(origin, moved, number)
        again = variant in ways[:number]
        trial = _Trial(subject, module, wide, weights, variant, number, plan_dtype, again)
        try:
            outcomes = trial.outcomes()
            _check_numbers(subject, outcomes[0])
        except NoNumberError:  # of rows of one token: their deviation, what attends to no padding
            trial = replace(trial, alike=False)
            outcomes = trial.outcomes()
        _compare(trial, *outcomes)
    evaluates = _check_ways(subject, traced, trial.batch)
    if traced.dtype != "f64":
        _prove_narrow(subject, traced, module, origin, moved)
    return evaluates


def _check_numbers(subject: Subject, expected: Outcome) -> None:
    for name, gradient in expected.grads.items():
        if gradient is not None and not gradient.isfinite().all():
            raise NoNumberError(f"model {subject.name}: the gradient of {name} is no number")


def _check_ways(subject: Subject, traced: Traced, batch: Batch) -> str:
    """Refuse a module whose export took another way through its code than a call takes; return
    where a call takes another way when the module evaluates."""
    if not traced.ways:
        return ""
    given = subject.build, batch, subject.name, torch_dtype(traced.dtype)
    called = ways_of(*given)
    if place := parted(traced.ways, called):
        raise ProofError(
            f"model {subject.name}: {place}, runs in a training step and not while the module is "
            "traced, or the other way round: its code asks whether it is traced, or catches an "
            "error that tracing raises. Leave that out"
        )
    with suppress(ProofError):  # it need not run when it evaluates
        return parted(called, ways_of(*given, trains=False))
    return ""


def _lengths(subject: Subject, traced: Traced) -> Lengths:
    return traced.lengths.from_to(traced.lengths.least, subject.max_seq)


def _batch(
    subject: Subject,
    traced: Traced,
    module: nn.Module,
    variant: Variant,
    seed: int,
    alike: bool = False,
) -> Batch:
    """Draw the batch of a variant, of what the module reads."""
    return random_batch(
        variant.rows * variant.microbatches,
        variant.seq,
        subject.vocab_size,
        seed,
        subject.own_loss,
        named_tokens(traced),
        sites_of(traced.graph),
        alike=alike,
        reads=_reads(module, subject.name, variant.seq),
        adjoins=getattr(module, "image_adjoins", False),
    )


def _reads(module: nn.Module, name: str, seq: int) -> dict[str, tuple[int, ...]]:
    """Return the sizes of a row of each role that a module reads beside tokens."""
    images = image_sizes(module, name)
    return {role: images.get(role, (seq,)) for role in roles_of(module, name) if role != "tokens"}


@dataclass(frozen=True)
class _Trial:
    """One way of running a module in float64 and the program of its capture, on one batch."""

    subject: Subject
    module: nn.Module
    traced: Traced
    weights: dict[str, Tensor]
    variant: Variant
    seed: int
    plan_dtype: torch.dtype
    again: bool  # an earlier trial has had its sizes
    alike: bool = True  # whether some rows are of one token alone

    def __str__(self) -> str:
        return f"model {self.subject.name}, {self.variant}"

    @property
    def longest(self) -> bool:
        """Return whether its row is the longest, which an export takes apart from shorter ones."""
        most = _lengths(self.subject, self.traced).most
        return self.traced.longest_apart and self.variant.seq == most

    @property
    def batch(self) -> Batch:
        return _batch(self.subject, self.traced, self.module, self.variant, self.seed, self.alike)

    def outcomes(self) -> tuple[Outcome, Outcome]:
        """The module's outcome, and the program's on the same rows in another order."""
        batch = self.batch
        expected = run_module(self.module, self.weights, batch, self.subject.name, self.plan_dtype)
        given = batch.permuted() if self.variant.microbatches > 1 else batch
        return expected, run_program(one_rank_plan(self.traced, self.variant), self.weights, given)

    def moved_by_digits(self, name: str, gradient: Tensor) -> float:
        """How far the module's own gradient moves, at most, as the last digits of its weights do.

        One that is zero but for rounding, as of a bias before a norm over the tokens, moves by all
        of its size; a small one by its last digits."""
        digits = torch.finfo(torch.float64).eps
        own = self.subject.name
        near = (moved_by(self.weights, digits, seed) for seed in _DRAWS)
        ran = (run_module(self.module, w, self.batch, own, self.plan_dtype) for w in near)
        grads = (outcome.grads[name] for outcome in ran)
        return max(_size(other - gradient) for other in grads if other is not None)

    def first_difference(self) -> str:
        """A sentence that names where a loss that differs comes from; "" where nothing shows it."""
        if self.variant.microbatches > 1:
            rows = self.variant.rows
            return first_mixed_rows(self.module, self.batch, rows, self.plan_dtype, TOLERANCE)
        plan = one_rank_plan(self.traced, self.variant)
        return first_difference(
            plan, self.weights, self.module, self.batch, self.plan_dtype, TOLERANCE
        )


def _compare(trial: _Trial, expected: Outcome, found: Outcome) -> None:
    if not abs(found.loss - expected.loss) <= TOLERANCE * max(1.0, abs(expected.loss)):
        raise ProofError(
            f"{trial}: the captured program's loss is {found.loss:.10g}, the module's "
            f"{expected.loss:.10g}, in float64.{trial.first_difference()} {_advice(trial)}"
        )
    largest = max((_size(g) for g in expected.grads.values() if g is not None), default=0.0)
    for name in reversed(list(found.grads)):
        _compare_gradient(trial, name, expected.grads.get(name), found.grads[name], largest)
    if not trial.subject.freezes:
        _check_left_out(trial, expected, found)


def _check_left_out(trial: _Trial, expected: Outcome, found: Outcome) -> None:
    """Refuse a parameter that PyTorch trains and the program does not: by a gradient of zeros, too,
    as optimizers decay its parameter."""
    for name, gradient in expected.grads.items():
        if name in found.grads or gradient is None or not gradient.numel():
            continue
        if gradient.any():
            which, way = "a gradient", "say in the module's __init__ what is trained, by "
            way += "requires_grad, and change it in no forward"
        else:
            which = "a gradient of zeros, by which optimizers decay it,"
            way = "its forward overwrites all that the parameter gives; leave it out, or freeze it"
        raise ProofError(
            f"{trial}: parameter {name} has {which} in PyTorch, and none in the captured program: "
            f"{way}"
        )


def _compare_gradient(
    trial: _Trial, name: str, expected: Tensor | None, found: Tensor | None, largest: float
) -> None:
    """largest: the largest element of all gradients."""
    assert found is not None, name
    reader = _reader(trial.traced.graph, name)
    if expected is None:
        raise ProofError(
            f"{trial}: parameter {name} has no gradient in PyTorch, and one in the captured "
            f"program ({reader}); freeze it, or let the loss depend on it"
        )
    off = _size(found - expected)
    if off <= TOLERANCE * max(_size(expected), _ZERO * largest):
        return
    if not off <= min(_ZERO * largest, _LAST_DIGITS * trial.moved_by_digits(name, expected)):
        raise ProofError(
            f"{trial}: the gradient of {name} ({reader}) differs from PyTorch's by {off:.3g}, its "
            f"largest element being {_size(expected):.3g}, in float64; later parameters agree"
        )


def _size(gradient: Tensor) -> float:
    return float(gradient.abs().max()) if gradient.numel() else 0.0


def _reader(graph: Graph, param: str) -> str:
    """The op that reads a parameter first, with its source line."""
    value = next(i.value.name for i in graph.inputs_of("param") if i.ref == param)
    op = next((op for op in graph.ops if value in op.inputs), None)
    return f"read by {op.target} at {op.source}" if op else "read by no op"


def _advice(trial: _Trial) -> str:
    if trial.variant.microbatches > 1:
        return (
            "On one micro-batch they agree: its rows see each other, or their number is used, or "
            "it keeps what it made of earlier weights. A plan cuts a batch into micro-batches and "
            "weights change, so compute each row by itself and keep nothing"
        )
    if trial.longest:
        return (
            "On shorter rows they agree: it computes the longest row in another way. A graph has "
            "one way for all lengths; compute each length alike"
        )
    if trial.variant.rows == 1:
        return (
            "On several rows they agree: it computes one row in another way, as by `if "
            "x.shape[0] == 1` or squeeze. A graph has one way for every number of rows, and takes "
            "that of several; compute each row by itself"
        )
    if trial.again:
        return (
            "On the first weights of these sizes they agree: it keeps what it made of earlier "
            "weights, by size. Weights change with each step, so keep nothing of them"
        )
    if drawn := drawn_buffers(trial.subject.build):
        return (
            f"Its buffer {drawn[0]} is drawn at random when the module is built: draw it from a "
            "torch.Generator with a seed, so that it is the same each time"
        )
    return f"{_UNFOLLOWED} ({trial.subject.name})"


def _prove_narrow(
    subject: Subject, traced: Traced, module: nn.Module, origin: dict[str, Tensor], moved: float
) -> None:
    """The same in the plan's dtype, where both sides round.

    Rounding may tip a choice, such as a router's: what differs on one draw of three alone passes.
    """
    narrow = built(subject.build, torch_dtype(traced.dtype))
    faults: list[ProofError] = []
    for seed in _DRAWS:
        try:
            _prove_rounding(subject, traced, module, narrow, moved_by(origin, moved, seed), seed)
        except NoNumberError:
            raise
        except ProofError as error:
            faults.append(error)
        if not faults:
            return
        if len(faults) == 2:
            raise faults[0]


def _prove_rounding(
    subject: Subject,
    traced: Traced,
    module: nn.Module,
    narrow: nn.Module,
    weights: dict[str, Tensor],
    seed: int,
) -> None:
    kinds = {n: p.dtype for n, p in narrow.named_parameters()}
    rounded = {n: w.to(kinds[n]).double() for n, w in weights.items()}
    variant = Variant(3, variants(_lengths(subject, traced))[1].seq, 1, keeps=True)
    batch = _batch(subject, traced, module, variant, seed)
    exact = run_module(module, rounded, batch, subject.name, torch_dtype(traced.dtype))
    own = run_module(narrow, rounded, batch, subject.name)
    found = run_program(one_rank_plan(traced, variant), rounded, batch)
    where = f"model {subject.name} in {traced.dtype}"
    epsilon = torch.finfo(torch_dtype(traced.dtype)).eps
    noise = max(abs(own.loss - exact.loss), epsilon * abs(exact.loss))
    if not abs(found.loss - exact.loss) <= NOISE * noise:
        raise ProofError(
            f"{where}: the captured program's loss is {found.loss:.7g}, the module's "
            f"{own.loss:.7g} and {exact.loss:.7g} in float64: further than its own rounding. "
            f"{_UNFOLLOWED} ({subject.name})"
        )
    _compare_rounding(where, traced, epsilon, exact, own, found)


def _compare_rounding(
    where: str, traced: Traced, epsilon: float, exact: Outcome, own: Outcome, found: Outcome
) -> None:
    """Gradients, each by its distance from float64 relative to its size."""
    norms = {n: float(g.norm()) for n, g in exact.grads.items() if g is not None}
    least = _SMALL * max(norms.values(), default=0.0) or 1.0  # none where a frozen head is zero
    sizes = {n: max(norms.get(n, 0.0), least) for n in found.grads}
    own_off = {n: _distance(own.grads[n], exact.grads[n]) / sizes[n] for n in found.grads}
    usual = max(sorted(own_off.values())[len(own_off) // 2], epsilon)
    for name in reversed(list(found.grads)):
        off = _distance(found.grads[name], exact.grads[name]) / sizes[name]
        if not off <= NOISE * (own_off[name] + usual):
            raise ProofError(
                f"{where}: the gradient of {name} ({_reader(traced.graph, name)}) is {off:.2g} of "
                f"its size away from float64, the module's own {own_off[name]:.2g}"
            )


def _distance(given: Tensor | None, exact: Tensor | None) -> float:
    if given is None or exact is None:
        return 0.0
    return float((given.double() - exact).norm())
