"""The proof of a capture, as planning asks for it: of the whole module, or of a small twin."""

from dataclasses import replace
from typing import TYPE_CHECKING

from . import kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.nn import Module

    from meshwright.ir.capture.own_loss import OwnLoss
    from meshwright.ir.traced import Traced
    from meshwright.models import ModelSource
    from meshwright.proof.prove import Subject

    from .twin_ahead import TwinAhead

# Parameters, in bytes of the plan's dtype, up to which the whole module is proven: where a twin
# stands for the model, and where none does. Above the second a proof takes minutes.
WITH_TWIN_BYTES = 64 * 2**20
WHOLE_BYTES = 2**30

TRUSTED = "capture: trusted as --trust-capture says, not proven"


def proven(
    source: "ModelSource",
    traced: "Traced",
    own_loss: "OwnLoss | None",
    key: str,
    *,
    trust: bool,
    full: bool,
    say: "Callable[[str], None]",
    ahead: "TwinAhead | None" = None,
    freezes: bool = False,
) -> tuple["Traced", str]:
    """Prove a capture; return it and what the report says of the proof.

    key: that the capture is kept under, "" for none. trust: prove nothing. full: prove the whole
    module whatever its size. ahead: a process that proves twins meanwhile. freezes: whether the
    capture trains fewer parameters than the module does. Raises ProofError where the capture is
    wrong, and where it cannot be proven.
    """
    if trust:
        return replace(traced, warnings=(*traced.warnings, TRUSTED)), TRUSTED
    name = kept.proof_key(key, full) if key else ""
    said = kept.known("proofs", name) if name else ""
    if not said:
        said = _prove(source, traced, own_loss, full, say, ahead, freezes)
        if name:
            kept.remember("proofs", name, said)
    return traced, said


def _prove(
    source: "ModelSource",
    traced: "Traced",
    own_loss: "OwnLoss | None",
    full: bool,
    say: "Callable[[str], None]",
    ahead: "TwinAhead | None",
    freezes: bool,
) -> str:
    from meshwright.ir.errors import ProofError
    from meshwright.proof.prove import Subject, parameter_bytes, prove

    size = parameter_bytes(traced)
    sizes = source.vocab_size, source.max_seq
    subject = Subject(source.name, _plain(source), *sizes, own_loss, freezes)
    if full or size <= WITH_TWIN_BYTES:
        say(f"proving the capture of {source.name} against the module")
        return "capture: proven on the whole module" + _evaluating(prove(subject, traced))
    say(f"looking for a small twin of {source.name}, and proving the capture on it")
    twin = _twin(source, traced, own_loss, ahead)
    if twin is not None:
        return (
            f"capture: proven on a twin of {parameter_bytes(twin):,} bytes of parameters, whose "
            f"segments are the model's ({size:,} bytes)"
        )
    if size > WHOLE_BYTES:
        raise ProofError(
            f"model {source.name}: its {size / 2**30:.1f} GiB of parameters are past the "
            f"{WHOLE_BYTES / 2**30:.0f} GiB up to which a module is proven whole, and no small "
            "twin has its segments; give --prove-full (minutes, and that memory four times in "
            "float64), or --trust-capture"
        )
    say(f"no twin; proving the capture of {source.name} whole")
    return "capture: proven on the whole module" + _evaluating(prove(subject, traced))


def _evaluating(place: str) -> str:
    """Return what to say of a module that takes another way when it evaluates; "" of none."""
    if not place:
        return ""
    return (
        f"; {place}, runs in training alone or in eval() alone, and held-out losses are those of a "
        "training step without dropout"
    )


def _twin(
    source: "ModelSource",
    traced: "Traced",
    own_loss: "OwnLoss | None",
    ahead: "TwinAhead | None",
) -> "Traced | None":
    """Return a twin that stands for the model and is proven; None where there is none."""
    from meshwright.ir.errors import ProofError
    from meshwright.proof.prove import prove
    from meshwright.proof.twin import shortens, stands_for

    stands = shortens if source.kind == "py" else stands_for
    for known in ahead.verdicts() if ahead else ():
        if stands(known.twin, traced):
            if known.fault:
                raise ProofError(known.fault)
            return known.twin
    for subject, found in traced_twins(source, traced.dtype, own_loss, traced.lengths.least):
        if stands(found, traced):
            prove(subject, found)
            return found
    return None


def traced_twins(
    source: "ModelSource", dtype: str, own_loss: "OwnLoss | None", seq: int
) -> "Iterator[tuple[Subject, Traced]]":
    """Yield the small twins of a model that trace and may be proven whole, the smallest first.

    seq: a length of rows that the model takes.
    """
    from meshwright.ir.capture.export import trace
    from meshwright.ir.capture.exported import quiet
    from meshwright.models.twins import twins
    from meshwright.proof.prove import Subject, parameter_bytes

    for small in twins(source):
        try:
            with quiet():
                own = small.build, small.name, dtype, small.vocab_size
                found = trace(*own, loss=own_loss, seq=seq)
        except Exception:  # reduced sizes that do not fit each other
            continue
        if parameter_bytes(found) <= WHOLE_BYTES:
            sizes = small.vocab_size, small.max_seq
            yield Subject(small.name, _plain(small), *sizes, own_loss), found


def _plain(source: "ModelSource") -> "Callable[[], Module]":
    """Return what makes the module that a capture is compared with: of a stock class as the library
    builds it, else the module that is captured."""
    return source.plain or source.build
