"""From a module to torch's exported program, with gradients on and for every batch and length."""

import logging
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.fx import Node

from ..errors import CaptureError, SizeError
from ..inputs import Role, role_of
from ..lengths import Lengths
from ..traced import Ways
from . import semantic
from .alike import traced_once
from .asserts import drop_true_asserts
from .bound_sizes import binding_call
from .causal_hints import no_causal_detection
from .complex_pairs import complex_as_pairs
from .experts import expert_linear
from .forwards import Logits
from .fx import check_dtypes, check_sizes
from .gathers import gathers
from .images import image_sizes
from .lazy_modules import lazy_modules
from .lines import lines_of_model, short_line
from .nodes import own_draws
from .recurrence import recurrence
from .router_load import router_load
from .sinks import sink_attention
from .size_builtins import sizes_in_builtins
from .size_functions import sizes_as_numbers
from .size_questions import no_question_of_one_row, no_sizes_as_keys
from .steps import Way, following, read_off_tokens, steps_of, tried_beside
from .suggestions import no_failing_suggestions
from .tables import longest
from .traced_apart import no_question_of_tracing, no_texts
from .transforms import no_transforms
from .unseen import (
    as_it_was,
    check_compiled,
    check_hooks,
    check_unregistered,
    no_checkpoints,
    no_custom_functions,
    no_value_hooks,
    no_versions,
    no_writes_behind,
)
from .ways import Recorder, has_code_of_user

# The fewest and the most steps of a row that an export is for, as steps.py has it; None: any.
_Steps: TypeAlias = tuple[int, int | None]

_ROWS = 7  # that are traced, a prime unlike the tokens of a row: no coincidence merges symbols
# The shortest sequence: torch.export takes one token apart from several, and shows several.
_LEAST = 2
# Below it a part of a sequence, such as all tokens but one, may be one token: a size that torch
# takes apart from the others.
_SHORT = 4
# What torch calls a size of the tokens in its messages.
_SIZE = "L['given'][0].size()[{}]"
_GUARD = "satisfy the generated guard"
_BY_VALUES = re.compile(
    "Could not (guard on|extract specialized .* from) data-dependent expression"
)
_SPECIALIZED = "resulted in a specialized value of"


def _swap_semantic(module: nn.Module) -> None:
    """Modules that declare a `semantic_op` call that op instead."""
    for part in module.modules():
        made = _SEMANTIC.get(getattr(part, "semantic_op", None))
        if made is not None:
            part.forward = made(part)


def _attention_of(core: nn.Module) -> Callable[..., Tensor]:
    scale, window = float(core.scale), int(core.window or 0)  # type: ignore[arg-type]
    softcap, causal = float(core.softcap or 0.0), bool(core.causal)  # type: ignore[arg-type]

    def forward(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        if sinks is not None:
            return sink_attention(q, k, v, sinks, scale, causal, window, softcap)
        return semantic.attention(q, k, v, scale, causal, window, softcap)[0]

    return forward


_SEMANTIC: dict[str | None, Callable[[nn.Module], Callable]] = {
    "attention": _attention_of,
    "expert_linear": lambda _: expert_linear,
    "recurrence": lambda _: recurrence,
    "router_load": lambda _: router_load,
}


@dataclass(frozen=True)
class Exported:
    """A program of torch, the lengths of sequence that it is for, whether the longest of them must
    be proven, as Traced says, and the ways that the export took."""

    program: ExportedProgram
    lengths: Lengths
    longest_apart: bool
    ways: Ways


def exported_for(
    module: Logits, name: str, seq: int | None = None, alone: bool = False
) -> Exported:
    """Export a module for the lengths of sequence that it takes.

    seq: a length that it shall take, for which S is taken in other ways where the usual one is
    refused; None: any. alone: whether it is the only one, a number in the program.
    """
    _swap_semantic(module)
    check_compiled(module, name)
    check_hooks(module, name)
    check_unregistered(module, name)
    if seq is None:
        return _for_lengths(module, name, Way())
    return (_for_one_length if alone else _for_a_length)(module, name, seq)


def _for_a_length(module: Logits, name: str, seq: int) -> Exported:
    """Export for lengths, `seq` among them where that may be, in the first way that does it. Raises
    what the usual way was refused for where there is none."""
    way: Way | None = Way()
    refused: list[CaptureError] = []
    while way is not None:
        try:
            found = _for_lengths(module, name, way)
        except CaptureError as error:
            refused.append(error)
            if not isinstance(refused[0], SizeError):
                break
            way = following(way, f"{error} {error.__cause__}", seq, partial(_runs, module, name))
        else:
            known = found.lengths.takes(seq)
            return found if known else _of_its_kind(seq, found, module, name, way)
    raise refused[0]


def _of_its_kind(seq: int, found: Exported, module: Logits, name: str, way: Way) -> Exported:
    """Return the export for the lengths that a forward takes as it takes `seq`; that which is found
    where there is none, or where `seq` is past a table."""
    every = replace(found, lengths=Lengths(way.step, None, way.step))
    within = _within_tables(every, module, name).takes(seq)
    for tried in tried_beside(seq, way.step) if within else ():
        try:
            if _runs(module, name, tried):
                other = _for_lengths(module, name, replace(way, tried=tried))
                if other.lengths.takes(seq):
                    return other
        except CaptureError:
            continue
    return found


def _for_one_length(module: Logits, name: str, seq: int) -> Exported:
    with as_it_was(module):
        found = _exported(module, name, Way(tried=seq), None, asserts=False)
    _within_tables(found, module, name)
    longer = _places_of_image(module, name)
    if seq <= longer:
        raise SizeError(
            f"model {name}: an image takes {longer} tokens of a row, of {seq}; a row has "
            "one more at least"
        )
    return found


def _for_lengths(module: Logits, name: str, way: Way) -> Exported:
    """Export for every length that a way of taking S leaves.

    A module that asks for some range of them, for instance the rows of a table of positions that
    it slices, or two tokens at least, is exported again for that range.
    """
    steps: _Steps = (_LEAST, None)
    asserts = False
    while True:
        try:
            with as_it_was(module):
                found = _exported(module, name, way, steps, asserts)
            lengths = _within_tables(found, module, name)
            return replace(found, lengths=lengths.from_to(_places_of_image(module, name) + 1, None))
        except CaptureError as error:
            message = str(error.__cause__)
            asked = _range_of(message, steps, way)
            if asked == steps and (asserts or _GUARD not in message):
                raise
            # A guard that torch cannot solve may be true for every length: it becomes an assertion.
            asserts = asserts or asked == steps
            steps = asked


def _places_of_image(module: Logits, name: str) -> int:
    """Return how many tokens of a row its image takes."""
    return sum(image_sizes(module.module, name).get("places", ()))


def _within_tables(found: Exported, module: Logits, name: str) -> Lengths:
    program, lengths = found.program, found.lengths
    given = zip(program.graph_signature.user_inputs, module.arguments, strict=False)
    positions = tuple(node for node, asked in given if role_of(asked) == "positions")
    return lengths.from_to(lengths.least, longest(program, positions, name, lengths.step))


def _given(module: Logits, name: str, tokens: int) -> tuple[tuple[Tensor, bool], ...]:
    """Return what a forward is traced on, and of each whether it has the row's length."""
    images = image_sizes(module.module, name)
    roles = [*map(role_of, module.arguments), None][: module.num_inputs]
    return tuple(
        (_zeros(images.get(role, (tokens,)), role, module), role not in images) for role in roles
    )


def _runs(module: Logits, name: str, tokens: int) -> bool:
    """Return whether the forward runs. tokens: of each row."""
    given = [tensor for tensor, _ in _given(module, name, tokens)]
    with as_it_was(module), quiet():
        try:
            _call(module, given)
        except Exception as error:
            return _BY_VALUES.search(str(error)) is not None
    return True


def _exported(module: Logits, name: str, way: Way, steps: _Steps | None, asserts: bool) -> Exported:
    """Export with gradients, so that a model's own no_grad regions show as graphs within it.

    steps: of a row; None: the length is a number, that of the way. asserts: whether what torch
    cannot show of sizes becomes an assertion, checked here.
    """
    inputs = _given(module, name, way.tried)
    given = tuple(tensor for tensor, _ in inputs)
    rows = {0: Dim("B", min=1)}
    dims = rows | ({1: _length(way, steps)} if steps else {})
    each = {"given": tuple(dims if of_row else rows for _, of_row in inputs)}
    recorder, of_sizes = Recorder(), list[str]()
    try:
        with (
            torch.enable_grad(),
            no_custom_functions(name),
            no_checkpoints(),
            no_value_hooks(name),
            no_versions(name),
            no_writes_behind(),
            no_question_of_one_row(name, module.seen),
            no_sizes_as_keys(name),
            _sizes_as_numbers(module, way, of_sizes),
            _functions(name),
            no_texts(name),
            no_causal_detection(),
            no_failing_suggestions(),
            torch.backends.opt_einsum.flags(enabled=False),  # it would order factors by size
            complex_as_pairs(),
            _modules(module.module),
            lines_of_model(),
            quiet(),
            recorder.recording() if has_code_of_user(module.module) else nullcontext(),
        ):
            program = export(
                module,
                given,
                dynamic_shapes=each,
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=asserts,
            )
    except CaptureError:
        raise
    except Exception as error:
        with quiet():
            fails_anyway = _fails_anyway(module, given, error)
        if fails_anyway:  # on other sizes it may not
            raise SizeError(
                f"model {name}: its forward fails on tokens {list(given[0].shape)}: "
                f"{_said_of(error)}"
            ) from error
        if "fake tensor in the exported program constant" in str(error):
            raise CaptureError(
                f"model {name}: its forward reads a tensor that is no parameter, no buffer and no "
                "value of this call, but one kept from an earlier call, as by functools.lru_cache, "
                "one in a closure or a partial, or a gradient that it takes itself; make it a "
                "parameter or a buffer"
            ) from error
        if "torch._C.Generator" in str(error):  # torch 2.11 holds none in a graph
            place = _place_of(error).removeprefix(", at ") or "its forward"
            raise own_draws(f"model {name}: {place}") from error
        if _BY_VALUES.search(str(error)):
            raise _decides(name, _place_of(error), of_sizes) from error
        with quiet():
            call = binding_call(module, given, each) if _SPECIALIZED in str(error) else ""
        raise SizeError(
            f"model {name} cannot be traced for every batch and sequence size: "
            f"{f'{call}: ' if call else ''}{reason_of(error)}{'' if call else _place_of(error)}; "
            "its forward must not depend on the values or sizes of its input"
        ) from error
    check_dtypes(program.graph)
    check_sizes(program.graph_module)
    least, most = _narrowed(program, way, steps) if steps else (way.tried, way.tried)
    lengths = Lengths(1, None, way.step).from_to(least, most)
    return Exported(program, *drop_true_asserts(program.graph, lengths, name), recorder.ways)


def _decides(name: str, place: str, of_sizes: list[str]) -> CaptureError:
    """Return what to say of a forward that values decide. of_sizes: functions of `math` that made
    values of sizes, which are numbers where rows have one length alone."""
    where = place.removeprefix(", at ") or "its forward"
    if of_sizes:
        return SizeError(
            f"model {name}: {where} decides by what math.{of_sizes[-1]} makes of a size, or by "
            "values of a tensor, as if, assert and int do; a graph has one way for all of them"
        )
    return CaptureError(
        f"model {name}: {where} decides by values of a tensor, as if, assert and int do; a graph "
        "has one way for all values, so choose by torch.where, or leave it out"
    )


@contextmanager
def _modules(module: nn.Module) -> Iterator[None]:
    with lazy_modules(), traced_once(module):
        yield


@contextmanager
def _functions(name: str) -> Iterator[None]:
    with no_question_of_tracing(name), no_transforms(name), gathers():
        yield


@contextmanager
def _sizes_as_numbers(module: Logits, way: Way, used: list[str]) -> Iterator[None]:
    builtins = sizes_in_builtins(module.seen) if way.numbers else nullcontext()
    with sizes_as_numbers(used), builtins:
        yield


def _length(way: Way, steps: _Steps) -> Any:
    """Return the length of a row as torch wants it: a Dim, or a multiple of one."""
    count = Dim("S" if way.step == 1 else "steps", min=steps[0], max=steps[1])
    return count if way.step == 1 else way.step * count


def _narrowed(program: ExportedProgram, way: Way, steps: _Steps) -> tuple[int, int | None]:
    """Return the least and the most tokens of a row. Of a multiple of a Dim, torch refuses no guard
    that only narrows its range: the program has what is left."""
    tokens = _tokens_of(program)
    if way.step > 1:
        read_off_tokens(program.graph, tokens)
    left = program.range_constraints.get(steps_of(tokens.meta["val"].shape[1], way.step))
    least, most = steps
    if left is not None:
        least = max(least, int(left.lower))
        most = int(left.upper) if left.upper.is_Integer else most
    return least * way.step, most and most * way.step


def _tokens_of(program: ExportedProgram) -> Node:
    first = program.graph_signature.user_inputs[0]
    return next(node for node in program.graph.nodes if node.name == first)


def _zeros(sizes: tuple[int, ...], role: Role | None, module: nn.Module) -> Tensor:
    """Return an input of zeros. sizes: of a row."""
    floats = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    return torch.zeros(_ROWS, *sizes, dtype=floats if role == "images" else torch.int64)


def _fails_anyway(module: Logits, given: tuple[Tensor, ...], error: Exception) -> bool:
    """Tell whether the module fails as it did in the export when it is simply called.

    Where its parameters have no values, a call fails as the export does on what values decide.
    """
    try:
        _call(module, given)
    except Exception as plain:
        said = _without_sizes(plain)
        by_values = _BY_VALUES.search(str(plain)) is not None
        return bool(said.strip()) and not by_values and said in _without_sizes(error)
    return False


def _call(module: Logits, given: Iterable[Tensor]) -> None:
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    with torch.no_grad():
        module(*(tensor.to(device) for tensor in given))


def _without_sizes(error: Exception) -> str:
    """What an error says: the export says of sizes what the call says of numbers."""
    return re.sub(r"\b[su]?\d+(\*[su]?\d+)*", "", str(error))


def _said_of(error: Exception) -> str:
    """Return an error of the module's code in a line, with the place outside of torch."""
    own = _own_frames(error)
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {reason_of(error)}{where}"


def _place_of(error: Exception) -> str:
    """The line of the model that an error came from, behind "at"; "" where torch alone has it."""
    places = [short_line(f.filename, f.lineno or 0) for f in _own_frames(error)]
    found = [place for place in places if place]
    return f", at {found[-1]}" if found else ""


def _own_frames(error: Exception) -> list[traceback.FrameSummary]:
    """Outside of torch and of this room."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if f.filename[0] != "<" and short_line(f.filename, f.lineno or 0)]


def _range_of(message: str, steps: _Steps, way: Way) -> _Steps:
    """The steps of a row to try after torch's guards refused some; the same where none may do.

    torch names a range, or a guard that the shortest sequences alone may break: a slice of one.
    """
    size = re.escape(_SIZE.format(1))
    match = re.search(rf"guard (\d+) <= {size} and {size} <= (\d+|IntInfinity\(\))", message)
    if match is None:
        short = _GUARD in message
        return (max(_SHORT, steps[0]), steps[1]) if short else steps
    low, high = int(match[1]), int(match[2]) if match[2].isdigit() else None
    if low == high or not low <= way.tried <= (high or way.tried):  # bound to the length at hand
        return steps
    return max(-(-low // way.step), steps[0]), high // way.step if high else steps[1]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's own log of a failing export, pages of graphs, from the user's terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


def reason_of(error: Exception) -> str:
    """Return the first violated constraint where torch lists them, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    listed = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    reason = next(iter(listed + lines), type(error).__name__).rstrip(".")
    if fixed := re.search(
        r"marked (\w+) as dynamic but your code specialized it to be a constant (\(\d+\))", reason
    ):
        return (
            f"{fixed[1]} is bound to a number {fixed[2]}, as by a loop over tokens, a recurrent "
            "layer of torch, or a function of a size that wants a number, such as len or int"
        )
    if fixed := re.search(rf"{_SPECIALIZED} (\d+)", reason):
        size = "S" if _SIZE.format(1) in reason else "B"
        return (
            f"{size} is bound to a number ({fixed[1]}), as by chunk or split of that dimension "
            "into a number of parts; cut it by narrow or slices at sizes calculated from it"
        )
    for dim, size in enumerate("BS"):
        reason = reason.replace(f"{size} = {_SIZE.format(dim)}", size)
        reason = reason.replace(_SIZE.format(dim), size)
    return reason
