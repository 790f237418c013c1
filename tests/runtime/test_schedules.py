"""The schedules that a program runs: transfers match, and what is unsound is refused and shown."""

import pytest

from meshwright.ir import schedule as ir_schedule
from meshwright.ir.errors import PlanError
from meshwright.ir.schedule import Action, parse_schedule
from meshwright.planner.pipeline.schedules import GENERATORS, chunks_of, make_schedule, stage_ranks
from meshwright.planner.pipeline.validation import validate
from meshwright.runtime.engine import executor


def test_the_executor_knows_the_kinds_and_the_sends_that_were_proven() -> None:
    assert executor.KINDS == ir_schedule.KINDS
    assert executor.SENDS_IN_FLIGHT == ir_schedule.SENDS_IN_FLIGHT


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize(("pp", "microbatches"), [(2, 2), (2, 4), (3, 9), (4, 4), (5, 20)])
def test_every_stage_does_each_micro_batch_once_and_transfers_match(
    name: str, pp: int, microbatches: int
) -> None:
    chunks = chunks_of(name, None)
    schedule, ranks = make_schedule(name, pp, microbatches), stage_ranks(name, pp, chunks)
    everyone = list(range(microbatches))
    back = ["I", "W"] if name.startswith("zb") else ["B"]
    for stage, rank in enumerate(ranks):
        mine = [a for a in schedule[rank] if a.stage == stage]
        for kind in ["F", *back]:
            assert [a.microbatch for a in mine if a.kind == kind] == everyone
    for actions in schedule:
        assert actions[-1] == Action("STEP") and actions.count(Action("STEP")) == 1
    sent = sorted(a.microbatch for actions in schedule for a in actions if a.kind == "SEND_F")
    borders = sum(a != b for a, b in zip(ranks, ranks[1:], strict=False))
    assert sent == sorted(everyone * borders)


def refused(text: str, microbatches: int, ranks: tuple[int, ...] = (0, 1)) -> str:
    with pytest.raises(PlanError) as caught:
        validate(parse_schedule(text), ranks, microbatches)
    return str(caught.value)


SECOND = "rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 STEP\n"


def test_a_deadlock_shows_the_grid_with_an_arrow_where_each_rank_waits() -> None:
    said = refused(
        "rank 0: 0F0 0SEND_F0 0RECV_B0 0B0 0F1 0SEND_F1 0RECV_B1 0B1 STEP\n"
        "rank 1: 1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1 STEP\n",
        2,
    )
    assert "deadlocks" in said
    assert "rank 0: 0F0 0SEND_F0 -> 0RECV_B0 0B0" in said
    assert "rank 1: 1RECV_F0 1F0 -> 1RECV_F1 1F1" in said


def test_sends_that_nobody_receives_in_time_are_a_deadlock() -> None:
    """The receiver waits for a gradient that comes after more sends than may be under way."""
    m = ir_schedule.SENDS_IN_FLIGHT + 1
    sends = " ".join(f"0F{i} 0SEND_F{i}" for i in range(m))
    backs = " ".join(f"0RECV_B{i} 0B{i}" for i in range(m))
    passes = " ".join(f"1RECV_F{i} 1F{i} 1B{i} 1SEND_B{i}" for i in range(m))
    validate(parse_schedule(f"rank 0: {sends} {backs} STEP\nrank 1: {passes} STEP\n"), (0, 1), m)
    turn = "rank 0: 0F0 0SEND_F0 0RECV_B1 0B1 0RECV_B0 0B0 0F1 0SEND_F1 STEP\n"
    assert "stage 0 runs RECV_B B F SEND_F" in refused(turn + SECOND, 2)


def test_a_channel_in_another_order_is_refused_with_both_orders() -> None:
    said = refused(
        "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B1 0B1 0RECV_B0 0B0 STEP\n"
        "rank 1: 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F0 1F0 1B0 1SEND_B0 STEP\n",
        2,
    )
    assert "transfers F from rank 0 to 1 do not match in order" in said
    assert "[(0, 0), (0, 1)] are sent, [(0, 1), (0, 0)] received" in said


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("rank 0: 0B0 0F0 STEP\n", "stage 0 runs B F of micro-batch 0"),
        ("rank 0: 0F0 0SEND_F0 0RECV_B0 0W0 0I0 STEP\n", "RECV_B W I of micro-batch 0"),
        ("rank 0: 0F0 0SEND_F0 0RECV_B0 0I0 STEP\n", "stage 0 runs F SEND_F RECV_B I"),
        ("rank 0: 0F0 0SEND_F0 0RECV_B0 0B0 0B0 STEP\n", "B B of micro-batch 0"),
        ("rank 0: 0F0 0SEND_F0 0RECV_B0 0B0\n", "rank 0: missing or not its own"),
        ("rank 0: 1F0 0F0 0SEND_F0 0RECV_B0 0B0 STEP\n", "not its own: (stage, micro-batch) [(1"),
        ("rank 0: STEP\n", "missing or not its own: (stage, micro-batch) [(0, 0)] of 1"),
    ],
)
def test_what_is_out_of_order_twice_or_missing_is_refused(first: str, said: str) -> None:
    assert said in refused(first + SECOND, 1)


def test_a_stage_waits_for_its_neighbour_on_the_same_rank() -> None:
    said = refused("rank 0: 1F0 0F0 1B0 0B0 STEP\n", 1, (0, 0))
    assert "deadlocks" in said and "rank 0: -> 1F0" in said


def test_sizes_that_a_schedule_cannot_take_are_refused_with_the_numbers() -> None:
    with pytest.raises(PlanError, match="schedule=2f2b: unknown; give one of 1f1b, gpipe"):
        make_schedule("2f2b", 2, 2)
    with pytest.raises(PlanError, match="6 micro-batches do not divide by pp=4; take 4 or 8"):
        make_schedule("interleaved", 4, 6)
    with pytest.raises(PlanError, match="schedule=zbv with pp=1"):
        make_schedule("zbv", 1, 6)
    with pytest.raises(PlanError, match="chunks=3: zbv has 2"):
        make_schedule("zbv", 2, 6, 3)
