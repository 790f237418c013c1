"""Dry runs: every golden program runs to the end of a step, and each planted fault is named."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from golden.test_golden import CASES
from golden.test_golden import _plan as plan_of

from meshwright.codegen.program import emit
from meshwright.ir.capture.export import trace
from meshwright.ir.traced import Traced
from meshwright.models.huggingface import stock_source
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.proof.program import runtime_here
from meshwright.runtime.dry.dry_run import dry_run
from meshwright.runtime.dry.found import DryRun
from meshwright.runtime.dry.meeting import check_meetings
from meshwright.runtime.dry.world import DryRunError, Group, Message, Trace
from meshwright.runtime.engine import mesh
from meshwright.runtime.training.options import RunOptions
from meshwright.runtime.training.program import load_layout


@pytest.fixture(autouse=True)
def _mesh_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "_state", mesh._State())


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A folder with the program of a golden case."""

    def write(case: str) -> Path:
        for name, text in emit(plan_of(CASES[case])).items():
            (tmp_path / name).write_text(text)
        return tmp_path

    with runtime_here():
        yield write


def _dry(folder: Path, optimizer: str = "adamw") -> DryRun:
    return dry_run(folder, RunOptions(optimizer=optimizer))


@pytest.mark.parametrize("case", CASES)
def test_every_golden_program_runs_to_the_end(program: Callable[[str], Path], case: str) -> None:
    folder = program(case)
    found = _dry(folder)
    layout = load_layout(folder)
    assert len(found.ranks) == found.world == len({rank.rank for rank in found.ranks})
    for rank in found.ranks:
        here = [b for b in layout.buckets if rank.coordinates["pp"] in b.homes]
        cuts = found.mesh["dp"] if layout.zero else 1
        # Weights and gradients in float32, whole or cut as the level says, and two moments.
        whole, cut = sum(b.numel for b in here) * 4, sum(b.numel for b in here) * 4 // cuts
        kept = {0: 4 * whole, 3: 4 * cut}[layout.zero]
        assert kept <= rank.held_bytes <= kept + 2048, rank  # the rest: tables of rotations
        assert rank.held_bytes < rank.peak_bytes
        if found.mesh["dp"] > 1 and layout.zero == 0:
            assert rank.sent_bytes["dp"] == whole + 8 * 8  # and the sums of the step
    assert (found.world > 1) == any(rank.messages for rank in found.ranks)


@pytest.mark.parametrize("optimizer", ["muon", "adafactor", "lion", "schedule-free", "sgd"])
def test_every_optimizer_runs_dry(program: Callable[[str], Path], optimizer: str) -> None:
    assert _dry(program("llama_zero3"), optimizer).world == 2


@cache
def _with_routers(dtype: str) -> Traced:
    config = pytest.importorskip("transformers").MixtralConfig(
        vocab_size=96, hidden_size=32, intermediate_size=24, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
        output_router_logits=True,
    )  # fmt: skip
    source = stock_source("mixtral", config)
    return trace(source.build, "mixtral", dtype, source.vocab_size)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("pins", ["pp=2 dp=2", "tp=2 dp=2", "cp=2 zero=3 dp=2"])
def test_experts_and_the_loss_of_their_routers_run_dry(
    dtype: str, pins: str, tmp_path: Path
) -> None:
    """How many rows an expert gets is a value, and a dry run has none."""
    traced = _with_routers(dtype)
    assert traced.has_router_loss
    given = parse_pins([*pins.split(), "schedule=gpipe"])
    plan = make_plan(traced, parse_cluster("cpu:4"), seq=16, global_batch=8, pins=given)
    for name, text in emit(plan).items():
        (tmp_path / name).write_text(text)
    with runtime_here():
        assert _dry(tmp_path).world == 4


def test_offloaded_values_are_not_held(program: Callable[[str], Path]) -> None:
    stays, leaves = _dry(program("llama_pp2_1f1b")), _dry(program("llama_offload"))
    assert leaves.ranks[0].peak_bytes < stays.ranks[0].peak_bytes


def _edit(folder: Path, name: str, before: str, after: str) -> None:
    text = (folder / name).read_text()
    assert before in text, (name, before)
    (folder / name).write_text(text.replace(before, after, 1))


# Case, file, what is edited, and what the message says.
FAULTS = {
    "receives too early": (
        "llama_pp2_1f1b", "schedule.py", '("F", 0, 1), ("SEND_F", 0, 1), ("RECV_B", 0, 0)',
        '("RECV_B", 0, 1), ("RECV_B", 0, 0), ("F", 0, 1), ("SEND_F", 0, 1)',
        r"ranks wait for each other: rank 0 is in recv of 128 x float32 \(RECV_B of stage 0",
    ),
    "another shape": (
        "llama_pp2_1f1b", "stage_01.py", "ENTRY = ((B, S, 16)", "ENTRY = ((B, S, 8)",
        "rank 1|stage 1",
    ),
    "one rank more often": (
        "llama_tp2", "stage_00.py", 'collectives.all_reduce(',
        '(collectives.all_reduce if TP_RANK else _twice)(',
        r"rank \d is in all_reduce of [\d,]+ x float32|rank \d is in all_reduce of sum of",
    ),
    "another op": (
        "llama_tp2", "stage_00.py", 'DEVICE = mesh.device()',
        'DEVICE = mesh.device()\ncollectives.all_reduce(torch.empty(4, device=DEVICE), '
        '"max" if TP_RANK else "sum", TP)',
        r"rank 1 is in all_reduce of max of 4 x float32 .* where rank 0 is in all_reduce of sum",
    ),
}  # fmt: skip
_TWICE = """
def _twice(x, op, group):
    return collectives.all_reduce(collectives.all_reduce(x, op, group), op, group)
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(program: Callable[[str], Path], fault: str) -> None:
    case, name, before, after, said = FAULTS[fault]
    folder = program(case)
    _edit(folder, name, before, after)
    if "_twice" in after:
        _edit(folder, name, "\ndef context", _TWICE + "\n\ndef context")
    with pytest.raises(DryRunError, match=said) as caught:
        _dry(folder)
    assert "\n" not in str(caught.value)


def _trace(*events: Message | int) -> Trace:
    trace = Trace(groups=[Group((0, 1), 0)])
    for event in events:
        if isinstance(event, int):
            trace.events.append(event)
        else:
            trace.begin(event)
    return trace


def test_messages_meet_in_the_order_of_each_communicator() -> None:
    here, there = Message(0, "send", "4 x float32", 1), Message(0, "recv", "4 x float32", 0)
    check_meetings({0: _trace(here, here, 0, 1), 1: _trace(there, 0, there, 1)})
    with pytest.raises(DryRunError, match="ranks wait for each other: rank 0 is in send of 4"):
        check_meetings({0: _trace(here, here, 0, 1), 1: _trace(there, 0)})


def test_parts_that_are_sent_are_those_that_are_received() -> None:
    def message(received: tuple[int, ...], sent: tuple[int, ...]) -> Message:
        return Message(0, "all_to_all", "rows", parts=(received, sent))

    check_meetings({0: _trace(message((0, 0), (0, 3)), 0), 1: _trace(message((3, 0), (0, 0)), 0)})
    with pytest.raises(DryRunError, match="all_to_all of rows"):
        check_meetings(
            {0: _trace(message((0, 0), (0, 3)), 0), 1: _trace(message((2, 0), (0, 0)), 0)}
        )
