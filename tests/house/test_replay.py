"""What a replay calls equal, and what it does not; without planning anything."""

import subprocess
import sys
from dataclasses import replace

import pytest
import replay_compare
from house.rooms import ROOT
from replay_compare import Reading, Rewrite, compare, compare_open, normalise, plan_difference
from replay_problems import LARGE, SMALL

PLAN = """meshwright plan v1
model: tiny
mesh: pp=1 dp=4 tp=1
zero: 0

[costs]
predicted_step_us 27195.66918400001
gap 0.018

[params]
embed.weight : f32[256, 128] @ [{}, {}] init normal(0.0, 0.02)

[piece head]
saved: %x
%mul : f32[B, S] @ [{}, {}] = mul.Tensor(%x, %w)  # models/decoder.py:68
"""
READING = Reading(PLAN, 37, 4, cpu_s=5.0, search_cpu_s=2.0, mib=400.0)


def _differs(head: str, base: str = PLAN) -> bool:
    return bool(plan_difference(normalise("p", base), normalise("p", head)))


@pytest.mark.parametrize(
    "old, new",
    [
        ("plan v1", "plan v2"),
        ("pp=1 dp=4 tp=1", "pp=1 rep=1 dp=4 cp=1 tp=1"),
        ("decoder.py:68", "decoder.py:70"),
        ("27195.66918400001", "27195.66918400002"),
        ("%mul :", "%d_x :"),
    ],
)
def test_what_is_no_decision_makes_no_difference(old: str, new: str) -> None:
    assert old in PLAN and not _differs(PLAN.replace(old, new))


@pytest.mark.parametrize(
    "old, new",
    [
        ("[256, 128] @ [{}, {}]", "[256, 128] @ [{tp}, {}]"),
        ("pp=1 dp=4 tp=1", "pp=1 rep=2 dp=2 cp=1 tp=1"),
        ("zero: 0", "zero: 1"),
        ("saved: %x", "saved: %mul"),
        ("27195.669184", "27195.669384"),
        ("gap 0.018\n", ""),
        ("mul.Tensor(%x, %w)", "add.Tensor(%x, %w)"),
    ],
)
def test_a_changed_decision_is_a_difference(old: str, new: str) -> None:
    assert old in PLAN and _differs(PLAN.replace(old, new))


def test_a_listed_change_passes_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only for the problems it names."""
    head = [replace(READING, plan=PLAN.replace("zero: 0", "zero: 1"))]
    listed = (Rewrite(r"\d", "N", "ZeRO is cheaper now", "zero: ", problems="p"),)
    monkeypatch.setattr(replay_compare, "LISTED", listed)
    found = compare("p", [READING], head)
    assert (found.plans, found.complaints, found.listed) == (
        ("listed", (), ("ZeRO is cheaper now",))
    )
    assert compare("q", [READING], head).complaints == ("plans",)


@pytest.mark.parametrize(
    "change, complaint",
    [
        ({}, ""),
        ({"lp_solutions": 38}, "LP solutions"),
        ({"simulations": 3}, "simulations"),
        ({"cpu_s": 5.4}, ""),
        ({"cpu_s": 6.0}, "seconds 1.20x"),
        ({"search_cpu_s": 2.4}, "search seconds 1.20x"),
        ({"mib": 480.0}, "memory 1.20x"),
        ({"cpu_s": 2.0, "search_cpu_s": 1.0, "mib": 200.0}, ""),
    ],
)
def test_the_verdict(change: dict, complaint: str) -> None:
    found = compare("p", [READING] * 3, [replace(READING, **change)] * 3)
    assert ", ".join(found.complaints) == complaint


def test_the_median_counts_and_unsteady_runs_are_reported() -> None:
    slow = replace(READING, cpu_s=50.0)
    assert not compare("p", [READING] * 3, [slow, READING, READING]).complaints
    other = replace(READING, simulations=9)
    found = compare("p", [READING] * 2, [READING, other])
    assert found.complaints == ("head's runs differ",)


def test_open_axes_may_take_another_plan_but_no_more_than_the_limit() -> None:
    opened = replace(READING, plan="another", simulations=9, cpu_s=6.0, search_cpu_s=2.5)
    found = compare_open("p", [READING], [opened])
    assert (found.plans, found.complaints) == ("other", ())
    found = compare_open("p", [READING], [replace(opened, cpu_s=7.0)])
    assert found.complaints == ("seconds 1.40x",)


def test_there_are_sixteen_problems_and_their_precision_is_pinned() -> None:
    names = [problem.name for problem in (*SMALL, *LARGE)]
    assert len(set(names)) == len(names) == 16
    pinned = ["precision=" in " ".join(p.options) for p in (*SMALL, *LARGE)]
    assert all(pinned) and all("--dtype" in p.options for p in (*SMALL, *LARGE))


@pytest.mark.long
def test_the_working_tree_plans_as_its_last_commit_where_it_is_clean() -> None:
    """Seconds of single runs vary by more than the limit: the plan and the counts are judged."""
    if not (ROOT / ".git").exists() or _git("status", "--porcelain"):
        pytest.skip(f"{ROOT} is no clean git checkout")
    command = [sys.executable, str(ROOT / "benchmarks" / "replay.py"), "--base", "HEAD"]
    done = subprocess.run(
        [*command, "--runs", "1", "no-search"], capture_output=True, text=True, timeout=300
    )
    assert "| no-search | equal | 0, 0 | 1, 1 |" in done.stdout, done.stdout + done.stderr


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return done.stdout
