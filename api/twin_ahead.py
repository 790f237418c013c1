"""Proofs of small twins, made by another process while this one traces a large model.

Which twin stands for a model is known once the model is traced; mostly it is one of the first that
trace. So these are proven in advance, and the verdict is taken of the first that does stand for it.
"""

import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
    source: "ModelSource", dtype: str, own_loss: "OwnLoss | None"
) -> Iterator[TwinAhead | None]:
    """Prove twins beside what runs in this context, whose end stops it; None where a process is
    not to be forked: beside threads of Python, and on other systems than Linux."""
    if sys.platform != "linux" or threading.active_count() > 1:
        yield None
        return
    forked = multiprocessing.get_context("fork")
    ours, theirs = forked.Pipe()
    given = source, dtype, own_loss, theirs, ours
    process = forked.Process(target=_serve, args=given, daemon=True)
    try:
        process.start()
    except OSError:  # no memory, or no more processes allowed
        yield None
        return
    theirs.close()
    try:
        yield TwinAhead(ours)
    finally:
        ours.close()
        process.terminate()
        process.join()


def _serve(
    source: "ModelSource",
    dtype: str,
    own_loss: "OwnLoss | None",
    pipe: Connection,
    other: Connection,
) -> None:
    """Send verdicts until this process is stopped; it alone does not mind Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    other.close()
    if pipe.poll(BEGIN_S):  # the other end is closed
        return
    computed = "torch" in sys.modules  # by several threads perhaps, which a fork leaves behind
    import torch

    from meshwright.ir.errors import ProofError
    from meshwright.proof.prove import prove

    from .proving import traced_twins

    if computed:
        torch.set_num_threads(1)
    for subject, twin in traced_twins(source, dtype, own_loss):
        fault = ""
        try:
            prove(subject, twin)
        except ProofError as error:
            fault = str(error)
        except Exception:  # whoever asks for the twin meets it, and says it
            return
        try:
            pipe.send(Verdict(twin, fault))
        except OSError:
            return
