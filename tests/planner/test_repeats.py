"""Steps whose repetitions are skipped against steps that are followed to their end."""

from dataclasses import replace
from random import Random

import pytest
from steps import model, unit

from meshwright.planner.pipeline.repeats import repeats_of
from meshwright.planner.pipeline.schedules import SPLIT
from meshwright.planner.simulate import skipping
from meshwright.planner.simulate.simulator import simulate
from meshwright.planner.simulate.step_model import StepModel, Unit

NAMES = [("1f1b", 1), ("zb-h1", 1), ("zbv", 2), ("interleaved", 2), ("interleaved", 4)]


def _unit(random: Random, split: bool, gathers: bool, offloads: bool) -> Unit:
    """Draw a unit; some offload what they keep."""
    backward = [random.uniform(5, 30) for _ in range(2 if split else 1)]
    collectives = {
        "gather_us": random.uniform(1, 20) * gathers,
        "reduce_us": random.uniform(1, 20),
        "blocking_us": random.choice([0.0, 1.0]),
        "accumulate_us": random.uniform(0, 2),
    }
    one = unit(random.uniform(5, 20), *backward, **collectives)
    away_us = offloads * random.choice([0.0, random.uniform(1, 150)])
    return replace(one, work=replace(one.work, away_us=away_us))


def _drawn(name: str, chunks: int, random: Random) -> StepModel:
    p = random.choice([2, 3, 4])
    m = p * random.choice([16, 24])
    gathers, offloads = random.random() < 0.5, random.random() < 0.5
    drawn = model(name, [(1.0, 1.0)] * p * chunks, m, random.uniform(0, 8), chunks)
    stages = tuple(
        tuple(
            _unit(random, name in SPLIT, gathers, offloads) for _ in range(random.choice([1, 2, 3]))
        )
        for _ in drawn.stages
    )
    return replace(drawn, stages=stages, reduces_every_microbatch=random.random() < 0.5)


@pytest.mark.parametrize(("name", "chunks"), NAMES)
def test_a_skipped_repetition_takes_what_it_takes_when_followed(
    name: str, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, skipped = Random(f"{name}{chunks}"), list[int]()
    passed = skipping._pass
    monkeypatch.setattr(skipping, "_pass", lambda *given: skipped.append(1) or passed(*given))
    for _ in range(80):
        drawn = _drawn(name, chunks, random)
        repeats = repeats_of(drawn.schedule, drawn.num_microbatches)
        assert repeats is not None
        short = simulate(drawn, events=False, repeats=repeats)
        whole = simulate(drawn, events=False)
        for told, known in (
            ((short.step_us,), (whole.step_us,)),
            (short.busy_us, whole.busy_us),
            (short.finish_us, whole.finish_us),
            (short.exposed_us, whole.exposed_us),
        ):
            assert told == pytest.approx(known, rel=1e-9, abs=1e-6)
    assert len(skipped) > 20


def test_nothing_is_skipped_of_a_few_micro_batches_or_where_events_are_asked_for() -> None:
    few, many = (model("1f1b", [(1.0, 2.0)] * 4, m) for m in (12, 64))
    assert repeats_of(few.schedule, 12) is None
    repeats = repeats_of(many.schedule, 64)
    assert len(simulate(many, repeats=repeats).events) == 2 * 4 * 64


def test_gpipe_has_no_repetition_of_all_ranks() -> None:
    assert repeats_of(model("gpipe", [(1.0, 2.0)] * 4, 64).schedule, 64) is None
