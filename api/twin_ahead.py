"""Proofs of small twins, made by another process while this one traces a large model.

Which twin stands for a model is known once the model is traced; mostly it is one of the first that
trace. So these are proven in advance, and the verdict is taken of the first that does stand for it.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.ir.capture.own_loss import OwnLoss
    from meshwright.ir.traced import Traced
    from meshwright.models import ModelSource

# Of tracing, before a twin is worth a process: small models are proven whole, and soon. The twin of
# an 8B takes it 4 s, and what it stands for is traced 6 s after the beginning.
BEGIN_S = 1.5


@dataclass(frozen=True)
class Verdict:
    """What the proof of a twin came to. fault: what is wrong with its capture, "" for nothing."""

    twin: "Traced"
    fault: str


@dataclass(frozen=True)
class TwinAhead:
    """A process that proves the twins of a model, one after the other."""

    pipe: Connection

    def verdicts(self) -> Iterator[Verdict]:
        """Yield the verdicts that there are by now, of the smallest twin first."""
        with suppress(EOFError, OSError):
            while self.pipe.poll():
                yield self.pipe.recv()


@contextmanager
def twin_ahead(
    source: "ModelSource", dtype: str, own_loss: "OwnLoss | None", seq: int
) -> Iterator[TwinAhead | None]:
    """Prove twins beside what runs in this context, whose end stops it; None where a process is
    not to be forked: beside threads of Python, and on other systems than Linux."""
    from meshwright.planner.search.forked import can_fork, fork

    forked = None
    with suppress(OSError):  # no memory, or no more processes allowed
        if can_fork() and threading.active_count() == 1:
            forked = fork(partial(_serve, source, dtype, own_loss, seq))
    try:
        yield TwinAhead(forked.pipe) if forked else None
    finally:
        if forked:
            forked.end()


def _serve(
    source: "ModelSource", dtype: str, own_loss: "OwnLoss | None", seq: int, pipe: Connection
) -> None:
    """Send verdicts until this process is stopped."""
    if pipe.poll(BEGIN_S):  # the other end is closed
        return
    computed = "torch" in sys.modules  # by several threads perhaps, which a fork leaves behind
    import torch

    from meshwright.ir.errors import ProofError
    from meshwright.proof.prove import prove

    from .proving import traced_twins

    if computed:
        torch.set_num_threads(1)
    for subject, twin in traced_twins(source, dtype, own_loss, seq):
        fault = ""
        try:
            prove(subject, twin)
        except ProofError as error:
            fault = str(error)
        except Exception:  # whoever asks for the twin meets it, and says it
            return
        pipe.send(Verdict(twin, fault))
