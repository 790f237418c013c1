"""From a module to torch's exported program, with gradients on and for every batch and length."""

import logging
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from ..errors import CaptureError, SizeError
from ..inputs import Role, role_of
from ..traced import Ways
from . import semantic
from .asserts import drop_true_asserts
from .bound_sizes import binding_call
from .causal_hints import no_causal_detection
from .complex_pairs import complex_as_pairs
from .experts import expert_linear
from .forwards import Logits
from .fx import check_dtypes, check_sizes
from .images import image_sizes
from .lazy_modules import lazy_modules
from .lines import lines_of_model, short_line
from .recurrence import recurrence
from .router_load import router_load
from .size_functions import sizes_as_numbers
from .size_questions import no_question_of_one_row, no_sizes_as_keys
from .suggestions import no_failing_suggestions
from .tables import longest
from .traced_apart import no_question_of_tracing, no_texts
from .unseen import (
    as_it_was,
    check_hooks,
    check_unregistered,
    no_checkpoints,
    no_custom_functions,
    no_value_hooks,
    no_versions,
    no_writes_behind,
)
from .ways import Recorder, has_code_of_user

# The shortest and the longest sequence that a graph is for; None: any.
SeqRange: TypeAlias = tuple[int, int | None]

# Hints for B and S: primes that no model size equals, so that no coincidence merges symbols.
_HINTS = (7, 13)
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


def _attention_of(core: nn.Module) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    scale, window = float(core.scale), int(core.window or 0)  # type: ignore[arg-type]
    softcap, causal = float(core.softcap or 0.0), bool(core.causal)  # type: ignore[arg-type]

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
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
    lengths: SeqRange
    longest_apart: bool
    ways: Ways


def exported_for(module: Logits, name: str, seq: int | None = None) -> Exported:
    """Export a module for the lengths of sequence that it takes.

    A module that asks for some range of them, for instance the rows of a table of positions that
    it slices, or two tokens at least, is exported again for that range. seq: the only length, a
    number in the program.
    """
    _swap_semantic(module)
    check_hooks(module, name)
    check_unregistered(module, name)
    lengths: SeqRange = (_LEAST, None) if seq is None else (seq, seq)
    asserts = False
    while True:
        try:
            with as_it_was(module):
                found = _exported(module, name, lengths, asserts, seq is not None)
            least, most = _within_tables(found, module, name)
            longer = sum(image_sizes(module.module, name).get("places", ()))  # than its image
            if seq is not None and seq <= longer:
                raise SizeError(
                    f"model {name}: an image takes {longer} tokens of a row, of {seq}; a row has "
                    "one more at least"
                )
            if seq is not None:
                return found
            return replace(found, lengths=(max(least, longer + 1), most))
        except CaptureError as error:
            message = str(error.__cause__)
            asked = _range_of(message, lengths)
            if seq is not None or asked == lengths and (asserts or _GUARD not in message):
                raise
            # A guard that torch cannot solve may be true for every length: it becomes an assertion.
            asserts = asserts or asked == lengths
            lengths = asked


def _within_tables(found: Exported, module: Logits, name: str) -> SeqRange:
    program, lengths = found.program, found.lengths
    given = zip(program.graph_signature.user_inputs, module.arguments, strict=False)
    positions = tuple(node for node, asked in given if role_of(asked) == "positions")
    known = [n for n in (lengths[1], longest(program, positions, name)) if n is not None]
    return lengths[0], min(known, default=None)


def _exported(module: Logits, name: str, lengths: SeqRange, asserts: bool, fixed: bool) -> Exported:
    """Export with gradients, so that a model's own no_grad regions show as graphs within it.

    asserts: whether what torch cannot show of sizes becomes an assertion, checked here. fixed:
    whether the length is a number.
    """
    images = image_sizes(module.module, name)
    roles = [*map(role_of, module.arguments), None][: module.num_inputs]
    of_row = (lengths[0],) if fixed else _HINTS[1:]
    given = tuple(_zeros(images.get(role, of_row), role, module) for role in roles)
    dims = {0: Dim("B", min=1)}
    if not fixed:
        dims[1] = Dim("S", min=lengths[0], max=lengths[1])
    each = {"given": tuple({0: dims[0]} if role in images else dims for role in roles)}
    recorder = Recorder()
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
            sizes_as_numbers(),
            no_question_of_tracing(name),
            no_texts(name),
            no_causal_detection(),
            no_failing_suggestions(),
            torch.backends.opt_einsum.flags(enabled=False),  # it would order factors by size
            complex_as_pairs(),
            lazy_modules(),
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
        if _BY_VALUES.search(str(error)):
            raise CaptureError(
                f"model {name}: {_place_of(error).removeprefix(', at ') or 'its forward'} decides "
                "by values of a tensor, as if, assert and int do; a graph has one way for all "
                "values, so choose by torch.where, or leave it out"
            ) from error
        with quiet():
            call = binding_call(module, given, each) if _SPECIALIZED in str(error) else ""
        raise SizeError(
            f"model {name} cannot be traced for every batch and sequence size: "
            f"{f'{call}: ' if call else ''}{reason_of(error)}{'' if call else _place_of(error)}; "
            "its forward must not depend on the values or sizes of its input"
        ) from error
    check_dtypes(program.graph)
    check_sizes(program.graph_module)
    kept = drop_true_asserts(program.graph, lengths, name)
    return Exported(program, *kept, recorder.ways)


def _zeros(sizes: tuple[int, ...], role: Role | None, module: nn.Module) -> Tensor:
    """Return an input of zeros. sizes: of a row."""
    floats = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    return torch.zeros(_HINTS[0], *sizes, dtype=floats if role == "images" else torch.int64)


def _fails_anyway(module: Logits, given: tuple[Tensor, ...], error: Exception) -> bool:
    """Tell whether the module fails as it did in the export when it is simply called.

    Where its parameters have no values, a call fails as the export does on what values decide.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad():
            module(*(tensor.to(device) for tensor in given))
    except Exception as plain:
        said = _without_sizes(plain)
        by_values = _BY_VALUES.search(str(plain)) is not None
        return bool(said.strip()) and not by_values and said in _without_sizes(error)
    return False


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


def _range_of(message: str, lengths: SeqRange) -> SeqRange:
    """The lengths to try after torch's guards refused some; the same where none may do.

    torch names a range, or a guard that the shortest sequences alone may break: a slice of one.
    """
    size = re.escape(_SIZE.format(1))
    match = re.search(rf"guard (\d+) <= {size} and {size} <= (\d+|IntInfinity\(\))", message)
    if match is None:
        short = _GUARD in message
        return (max(_SHORT, lengths[0]), lengths[1]) if short else lengths
    high = int(match[2]) if match[2].isdigit() else lengths[1]
    bound = int(match[1]) == high  # to the length at hand
    inside = int(match[1]) <= _HINTS[1] <= (high or _HINTS[1]) and not bound
    return (max(int(match[1]), lengths[0]), high) if inside else lengths


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
