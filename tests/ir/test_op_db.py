"""Ops of torch's own table, a small module each: computed as PyTorch computes it, or refused in one
line; none wrong, none with another exception, each in bounded time."""

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from op_modules import OPS, VOCAB, OpModule, op_modules

from meshwright.codegen.program import emit
from meshwright.ir.capture.export import trace
from meshwright.ir.errors import MeshwrightError
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.proof.prove import Subject, prove

PARTS = 8
CPU_SECONDS = 20  # of one module
# At least this share of the modules of all ops is proven; the others are refused.
PROVEN = 0.85

# Scalars, empty values, writes through views, values that decide sizes, several results, complex
# values, random draws, state, and sizes in gradients.
ODD = """
    addmm aminmax as_strided.partial_views bernoulli cumprod fft.rfft index_put masked_select
    native_batch_norm nn.functional.unfold ormqr quantile tensor_split var_mean
""".split()


@dataclass(frozen=True)
class Verdict:
    """What became of a module. kind: equal, refused, or wrong."""

    module: OpModule
    kind: str
    said: str = ""

    def __str__(self) -> str:
        return f"{self.module.name} ({self.module.form}): {self.said}"


class _TooLong(BaseException):
    """Raised where a module takes too long; no handler of Exception catches it."""


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise _TooLong when the block has taken its seconds of this process."""

    def stop(*_: object) -> None:
        raise _TooLong(f"takes more than {CPU_SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def judge(module: OpModule) -> Verdict:
    try:
        with _bounded():
            _try(module)
    except MeshwrightError as error:
        kind = "wrong" if "\n" in str(error) else "refused"
        return Verdict(module, kind, f"{type(error).__name__}: {error}")
    except (Exception, _TooLong) as error:
        return Verdict(module, "wrong", f"{type(error).__name__}: {str(error)[:400]}")
    return Verdict(module, "equal")


def _try(module: OpModule) -> None:
    """Trace, prove, then plan and emit for two ranks. Raises what any of them does."""
    traced = trace(module.build, module.name, "f64", VOCAB)
    prove(Subject(module.name, module.build, VOCAB, None), traced)
    for pins in (Pins(dp=2), Pins(tp=2)):
        emit(make_plan(traced, parse_cluster("cpu:2"), seq=8, global_batch=4, pins=pins))


def check(names: list[str]) -> list[Verdict]:
    """Judge the modules of some ops; print what is refused, and how many for what."""
    torch.manual_seed(0)
    verdicts = [judge(module) for name in names for module in op_modules(name)]
    refused = [v for v in verdicts if v.kind == "refused"]
    wrong = [str(v) for v in verdicts if v.kind == "wrong"]
    print(*refused, sep="\n")
    print(_table(verdicts))
    assert not wrong, "\n".join(wrong)
    return verdicts


# What a message of a refusal says, in the words of the table.
_REASONS = {
    "complex": "complex values",
    "sizes or numbers of the values": "values decide sizes",
    "must not depend on the values": "values decide what is done",
    "no such state": "state that outlives a step",
    "in place": "several results written in place",
    "called twice": "random draws",
    "its own loss": "the loss is no number",
    "differs from PyTorch's": "a gradient differs",
    "loss is": "the loss differs",
}


def _table(verdicts: list[Verdict]) -> str:
    """Counts of what is equal, and of what is refused by reason."""
    counts = Counter(
        v.kind
        if v.kind != "refused"
        else "refused: " + next((why for said, why in _REASONS.items() if said in v.said), "other")
        for v in verdicts
    )
    return "\n".join(f"{count:5} {kind}" for kind, count in sorted(counts.items()))


@pytest.mark.parametrize(
    "ops", [ODD[::2], pytest.param(ODD[1::2], marks=pytest.mark.long)], ids=["even", "odd"]
)
def test_odd_ops_are_equal_or_refused(ops: list[str]) -> None:
    check(ops)


@pytest.fixture(scope="module")
def all_verdicts() -> Iterator[list[Verdict]]:
    """Collects the verdicts of the parts that run, and prints their table behind the last."""
    found: list[Verdict] = []
    yield found
    print(f"\nof {len(found)} modules\n{_table(found)}")


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_every_op_is_equal_or_refused(part: int, all_verdicts: list[Verdict]) -> None:
    """Ops are dealt out, so that parts are alike."""
    verdicts = check(list(OPS)[part::PARTS])
    all_verdicts += verdicts
    proven = sum(v.kind == "equal" for v in verdicts)
    assert proven >= PROVEN * len(verdicts) - 2, f"{proven} of {len(verdicts)} proven"
