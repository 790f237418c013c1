"""The schedules that a program runs: what they hold in flight, and that deadlocks are shown."""

import pytest

from meshwright.ir.errors import PlanError
from meshwright.ir.schedule import Action, parse_schedule
from meshwright.planner.schedules import GENERATORS, in_flight, make_schedule, validate


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 6), (4, 2), (4, 8), (8, 16)])
def test_1f1b_holds_one_micro_batch_less_on_each_later_stage(
    stages: int, microbatches: int
) -> None:
    schedule = make_schedule("1f1b", stages, microbatches)
    held = [in_flight(actions) for actions in schedule]
    assert held == [min(microbatches, stages - stage) for stage in range(stages)]


def test_gpipe_holds_them_all() -> None:
    assert [in_flight(actions) for actions in make_schedule("gpipe", 3, 5)] == [5, 5, 5]


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 2), (3, 7), (5, 4)])
def test_every_stage_does_each_micro_batch_once_and_transfers_match(
    name: str, stages: int, microbatches: int
) -> None:
    schedule = make_schedule(name, stages, microbatches)
    everyone = list(range(microbatches))
    for stage, actions in enumerate(schedule):
        for kind in "FB":
            assert [a.microbatch for a in actions if a.kind == kind] == everyone
        assert actions[-1] == Action("STEP") and actions.count(Action("STEP")) == 1
        sent = [a.microbatch for a in actions if a.kind == "SEND_F"]
        after = schedule[stage + 1] if stage + 1 < stages else ()
        assert sent == [a.microbatch for a in after if a.kind == "RECV_F"]


def test_a_deadlock_shows_the_grid_with_an_arrow_where_each_stage_waits() -> None:
    text = "stage 0: F0 RECV_B0 SEND_F0 B0 STEP\nstage 1: RECV_F0 F0 B0 SEND_B0 STEP\n"
    with pytest.raises(PlanError) as caught:
        validate(parse_schedule(text))
    assert "deadlocks" in str(caught.value)
    assert "stage 0: F0 -> RECV_B0 SEND_F0 B0 STEP" in str(caught.value)
    assert "stage 1: -> RECV_F0 F0 B0 SEND_B0 STEP" in str(caught.value)


def test_an_unknown_schedule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlanError, match="schedule=2f2b: unknown; give one of 1f1b, gpipe"):
        make_schedule("2f2b", 2, 2)
