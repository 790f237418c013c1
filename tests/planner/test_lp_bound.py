"""The linear relaxation of a pipeline against simulated plans, and the paths that it is made of."""

import random
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from pipelines import equal_kind, equal_pipeline

from meshwright.ir.schedule import COMPUTE, peer_stage
from meshwright.planner.bounds.lp import INF, Pipeline, bound_pipeline
from meshwright.planner.bounds.mixes import mixes_of
from meshwright.planner.bounds.whole_units import busiest_us
from meshwright.planner.budget import BUDGET
from meshwright.planner.pipeline.closings import LAST
from meshwright.planner.pipeline.critical_path import waits_of
from meshwright.planner.pipeline.schedules import GENERATORS, chunks_of, make_schedule

SHAPES = [(2, 4), (4, 8)]


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("name", GENERATORS)
def test_it_is_the_best_split_of_a_pipeline(name: str, p: int, m: int) -> None:
    """Against stages of any sizes, bettered at random from equal ones, by their longest path."""
    chunks = chunks_of(name, None)
    waits, rng = waits_of(make_schedule(name, p, m, chunks)), random.Random(f"{name}/{p}/{m}")
    passes = {"F": 1.0, "I": 1.0, "W": 1.0, "B": 2.0, LAST: 2.0}

    def end(sizes: list[float]) -> float:
        us = {(s, a): sizes[s] * passes[a] for s, a in set(waits.nodes)}
        return waits.longest(us, [0.0] * len(sizes))[0]

    sizes = [4.0] * (p * chunks)
    best = end(sizes)
    for _ in range(800):
        one, other = rng.sample(range(len(sizes)), 2)
        moved = rng.uniform(0, min(0.5, sizes[one] - 1.0))
        tried = list(sizes)
        tried[one] -= moved
        tried[other] += moved
        if (step := end(tried)) <= best:
            sizes, best = tried, step
    found = bound_pipeline(equal_pipeline(name, p, m)).step_us
    assert 0.95 * best <= found <= best * (1 + 1e-9)


@pytest.mark.parametrize("name", GENERATORS)
def test_memory_shortens_what_a_stage_takes(name: str) -> None:
    """Limits are met or nothing fits; a tighter one is never faster, beyond what is not sought."""
    steps = [
        bound_pipeline(equal_pipeline(name, 4, 8, limit)).step_us
        for limit in (1e3, 60.0, 40.0, 6.0)
    ]
    assert all(b >= a * (1 - BUDGET.quick.close) for a, b in pairwise(steps))
    assert steps[0] < float("inf") and steps[-1] == float("inf")


@pytest.mark.parametrize("name", GENERATORS)
def test_paths_of_other_pipelines_bring_the_same_bound_in_fewer_rounds(name: str) -> None:
    """The paths of one memory limit for another one, all of them waits of both."""
    paths = bound_pipeline(equal_pipeline(name, 4, 8, 60.0), INF, BUDGET.thorough).paths
    alone = bound_pipeline(equal_pipeline(name, 4, 8, 40.0), INF, BUDGET.thorough)
    found = bound_pipeline(equal_pipeline(name, 4, 8, 40.0), INF, BUDGET.thorough, paths)
    assert found.step_us == pytest.approx(alone.step_us, rel=2 * BUDGET.thorough.close)
    assert len(found.paths) - len(paths) <= len(alone.paths)
    assert len(set(map(str, found.paths))) == len(found.paths)


@pytest.mark.parametrize("name", GENERATORS)
def test_the_longest_path_is_the_end_of_the_schedule(name: str) -> None:
    """Against times by hand: every action after its rank's last and after what it receives."""
    rng = random.Random(name)
    p, m, chunks = 4, 8, chunks_of(name, None)
    schedule = make_schedule(name, p, m, chunks)
    waits = waits_of(schedule)
    us = {node: rng.uniform(1, 9) for node in set(waits.nodes)}
    send_us = [rng.uniform(0, 3) for _ in range(p * chunks - 1)]
    longest, path = waits.longest(us, send_us)
    assert longest == pytest.approx(_end(schedule, us, send_us), rel=1e-12)
    walked = sum(count * us[node] for node, count in path.nodes.items()) + path.sends_us(send_us)
    assert walked == pytest.approx(longest, rel=1e-12)
    timed = waits.timed(us, send_us)
    assert max(timed.end_us(actions[-1]) for actions in waits.ranks) == longest
    for actions in waits.ranks:
        to_rank = timed.path(actions[-1])
        walked = sum(count * us[node] for node, count in to_rank.nodes.items())
        reached = pytest.approx(timed.end_us(actions[-1]), rel=1e-12)
        assert walked + to_rank.sends_us(send_us) == reached
    for other in waits.plain:
        walked = sum(count * us[node] for node, count in other.nodes.items())
        assert walked + other.sends_us(send_us) <= longest * (1 + 1e-12)


def test_paths_go_back_through_the_stages() -> None:
    """In 1F1B of equal stages, the longest is there before any solution asks for it: forward
    through all stages, along a rank, and back to the first."""
    waits = waits_of(make_schedule("1f1b", 4, 8, 1))
    us = {node: 1.0 if node[1] == "F" else 2.0 for node in set(waits.nodes)}
    longest, _ = waits.longest(us, [0.0] * 3)
    lengths = [
        sum(count * us[node] for node, count in path.nodes.items())
        for path in waits.plain
        if path.end == (0, LAST)
    ]
    assert len(lengths) == 4 and max(lengths) == longest


def _end(schedule, us, send_us) -> float:
    last = {(a.stage, a.kind): a for actions in schedule for a in actions}
    ends: dict[tuple, float] = {}
    clock, at = [0.0] * len(schedule), [0] * len(schedule)
    while any(i < len(actions) for i, actions in zip(at, schedule, strict=True)):
        for rank, actions in enumerate(schedule):
            while at[rank] < len(actions):
                a = actions[at[rank]]
                if a.kind.startswith("RECV"):
                    peer = peer_stage(a)
                    key = peer, a.kind[-1], a.microbatch
                    if key not in ends:
                        break
                    clock[rank] = max(clock[rank], ends[key] + send_us[min(peer, a.stage)])
                elif a.kind in COMPUTE:
                    final = a.kind == "B" and last[a.stage, "B"] == a
                    clock[rank] += us[a.stage, LAST if final else a.kind]
                    way = {"I": "B"}.get(a.kind, a.kind)
                    ends[a.stage, way, a.microbatch] = clock[rank]
                at[rank] += 1
    return max(clock)


def _two_kinds(name: str, p: int, m: int, units: list[int]) -> Pipeline:
    """Of units of 3 us forward and 4 back between a first and a last one, and of 1 us and 6."""
    split = name.startswith("zb")
    ends = equal_kind(1, 1.0, split)
    kinds = [equal_kind(units.count(kind), 1.0, split) for kind in (2, 3)]
    times = {2: (3.0, 1.0, 3.0), 3: (1.0, 5.0, 1.0)}

    def alone(forward: float, first: float, second: float) -> dict[str, tuple[float, ...]]:
        if split:
            return {"F": (forward,), "I": (first,), "W": (second,)}
        return {"F": (forward,), "B": (first + second,), LAST: (first + second,)}

    kinds = [replace(k, alone=alone(*times[n])) for n, k in enumerate(kinds, start=2)]
    return replace(equal_pipeline(name, p, m), kinds=(ends, ends, *kinds))


@pytest.mark.parametrize("name", GENERATORS)
def test_stages_keep_the_mix_of_their_model(name: str) -> None:
    """Against all cuts of units of two kinds in turn, without what it says of them, and with what
    whole units take the busiest rank."""
    p, m, chunks = 2, 4, chunks_of(name, None)
    units = [0, *[2, 3] * 6, 1]
    pipeline = _two_kinds(name, p, m, units)
    mixed = replace(pipeline, mixes=mixes_of(units, p * chunks))
    assert mixed.mixes
    found = bound_pipeline(mixed, INF, BUDGET.thorough).step_us
    free = bound_pipeline(pipeline, INF, BUDGET.thorough).step_us

    def end(starts: tuple[int, ...]) -> float:
        ends = zip((0, *starts), (*starts, len(units)), strict=True)
        us = {
            (s, a): sum(pipeline.kinds[k].alone[a][0] for k in units[start:stop])
            for s, (start, stop) in enumerate(ends)
            for a in pipeline.kinds[0].alone
        }
        return pipeline.waits.longest(us, [0.0] * (p * chunks))[0]

    best = min(map(end, combinations(range(1, len(units)), p * chunks - 1)))
    assert free * (1 - 1e-3) <= found <= best * (1 + 1e-9)
    assert not name.startswith("zb") or found > free * 1.001
    times = [pipeline.kinds[k].fastest_us for k in units]
    busiest = busiest_us(times, pipeline.stage_ranks)
    whole = bound_pipeline(mixed, INF, BUDGET.thorough, busiest_us=busiest).step_us
    assert found <= whole <= best * (1 + 1e-9)
    assert (name == "zbv") == (whole > found * 1.01)  # whose ends are both of the first rank


def test_first_units_keep_the_mix_of_all() -> None:
    rng = random.Random("mixes")
    for _ in range(50):
        kinds = [0, *rng.choices((2, 3, 4), (5, 5, 1), k=rng.randint(20, 60)), 1]
        kinds = [sorted(set(kinds)).index(k) for k in kinds]
        for mix in mixes_of(kinds, 4):
            sums = [sum(mix.weights[k] for k in kinds[:stop]) for stop in range(len(kinds) + 1)]
            assert (mix.least, mix.most) == pytest.approx((min(sums), max(sums)), rel=1e-12)
            assert sums[-1] == pytest.approx(0.0, abs=1e-9)
