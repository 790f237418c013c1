"""The proof of a twin beside the tracing of its model, in a process of its own."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from stacks import source_of

from meshwright.api import twin_ahead

TESTS = Path(__file__).parents[1]
# A process without threads, which this one is not: it traces a model while its twin is proven.
SCRIPT = """
import multiprocessing, sys, time
sys.path.insert(0, sys.argv[2])
from stacks import source_of, traced
from meshwright.api import proving, twin_ahead
from meshwright.ir.errors import ProofError
import meshwright.proof.prove as proofs

def wrong(*_):
    raise ProofError("1 of 2 gradients differ")

case, own = sys.argv[1], proofs.prove
proving.WITH_TWIN_BYTES = 0
twin_ahead.BEGIN_S = 1000.0 if case == "early" else 0.0
proofs.prove = wrong if case == "wrong" else own
source = source_of("alike")
with twin_ahead.twin_ahead(source, "f32", None, 8) as ahead:
    whole, calls, began = traced(source), [], time.monotonic()
    while case != "early" and multiprocessing.active_children():
        assert time.monotonic() - began < 100
        time.sleep(0.1)
    proofs.prove = lambda *given: calls.append(own(*given))
    try:
        given = {"trust": False, "full": False, "say": lambda _: None, "ahead": ahead}
        _, said = proving.proven(source, whole, None, "", **given)
    except ProofError as error:
        said = f"refused: {error}"
print(said, "| here", len(calls), "| left", len(multiprocessing.active_children()))
"""
PROVEN = (
    "capture: proven on a twin of 1,952 bytes of parameters, whose segments are the model's "
    "(2,816 bytes)"
)


@pytest.mark.parametrize(
    ("case", "said", "here"),
    [("ready", PROVEN, 0), ("early", PROVEN, 1), ("wrong", "refused: 1 of 2 gradients differ", 0)],
)
def test_the_verdict_of_the_first_twin_that_stands_is_taken(
    case: str, said: str, here: int
) -> None:
    """Three blocks stand for six, two do not; where no verdict is there yet, the twin is proven."""
    command = [sys.executable, "-c", SCRIPT, case, str(TESTS)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert run.stdout.strip() == f"{said} | here {here} | left 0", run.stdout + run.stderr


def test_no_process_is_forked_beside_threads() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    with twin_ahead.twin_ahead(source_of("alike"), "f32", None, 8) as ahead:
        assert ahead is None
    ended.set()
    thread.join()
