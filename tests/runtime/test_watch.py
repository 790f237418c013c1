"""Which rank holds the others up, told from their marks, whatever the clocks of their hosts say."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.runtime.launch import heartbeat, ranks
from meshwright.runtime.launch.heartbeat import Beacon, read_beat
from meshwright.runtime.launch.watchdog import Sightings

Advance = Callable[[float], None]


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Advance:
    """Lets so many seconds pass on this machine's clock."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


class Elsewhere:
    """A rank on another host, whose clock is `ahead_s` seconds ahead of ours."""

    def __init__(
        self, beacon: Beacon, ahead_s: float, advance: Advance, patch: pytest.MonkeyPatch
    ) -> None:
        self.beacon, self.ahead_s, self.advance, self.patch = beacon, ahead_s, advance, patch

    def _there(self, act: Callable[[], None]) -> None:
        with self.patch.context() as patch:
            patch.setattr(heartbeat, "CLOCK", b"another machine!")
            self.advance(self.ahead_s)
            act()
            self.advance(-self.ahead_s)

    def mark(self, kind: str) -> None:
        self._there(lambda: self.beacon.mark(kind))

    def sign(self) -> None:
        self._there(self.beacon.sign)


def _named(sightings: Sightings) -> tuple[int, str]:
    sightings.look()
    found = sightings.holding_up()
    assert found is not None
    return found[0], "" if found[1] is None else found[1].kind


def test_beats_hold_the_last_mark(tmp_path: Path) -> None:
    beacon = Beacon(tmp_path, 3)
    beacon.step = 7
    beacon.mark("SEND_B", 2, 5)
    beat = read_beat(tmp_path, 3)
    assert beat is not None and str(beat) == "step 7, stage 2, action SEND_B, micro-batch 5"
    assert read_beat(tmp_path, 4) is None


def test_the_rank_least_far_in_the_start_holds_the_others_up(
    tmp_path: Path, advance: Advance
) -> None:
    """Though its mark is the newest: it was started last."""
    beacons, sightings = (
        [Beacon(tmp_path, rank) for rank in range(3)],
        Sightings(tmp_path, range(3)),
    )
    for rank, kind in ((2, "RENDEZVOUS"), (0, "LAUNCH")):
        beacons[rank].mark(kind)
        advance(0.1)
    assert _named(sightings) == (1, ""), "it has not come to its start"
    beacons[1].mark("RENDEZVOUS")
    assert _named(sightings) == (0, "LAUNCH")
    for rank, kind in ((1, "GROUPS"), (0, "LOAD"), (2, "DATA")):
        advance(0.1)
        beacons[rank].mark(kind)
    assert _named(sightings) == (1, "GROUPS")
    advance(0.1)
    beacons[1].mark("LOAD")
    assert _named(sightings) == (0, "LOAD"), "the oldest"
    del sightings.of[0]
    found = sightings.holding_up()
    assert found is not None and found[0] == 2, "past the rendezvous all have marks somewhere"


def test_marks_of_a_run_before_count_for_nothing(tmp_path: Path, advance: Advance) -> None:
    Beacon(tmp_path, 0).mark("STEP")
    sightings, beacon = Sightings(tmp_path, range(2)), Beacon(tmp_path, 1)
    advance(1.0)
    beacon.mark("RENDEZVOUS")
    assert _named(sightings) == (0, "")
    Beacon(tmp_path, 0).mark("LAUNCH")
    assert _named(sightings) == (0, "LAUNCH")


def test_the_rank_that_signs_no_longer_holds_the_others_up(
    tmp_path: Path, advance: Advance
) -> None:
    """Its mark may be the newest of all: it went on alone, then its process stopped."""
    beacons, sightings = (
        [Beacon(tmp_path, rank) for rank in range(3)],
        Sightings(tmp_path, range(3)),
    )
    for rank in range(3):
        beacons[rank].mark("B", 0, rank)
        advance(0.1)
    beacons[2].mark("STEP")
    assert _named(sightings) == (0, "B")
    for _ in range(3):
        advance(1.0)
        for rank in (0, 1):
            beacons[rank].sign()
        sightings.look()
    assert _named(sightings) == (2, "STEP")
    beacons[2].sign()
    assert _named(sightings) == (0, "B")


def test_ranks_of_one_machine_are_told_apart_by_milliseconds(
    tmp_path: Path, advance: Advance
) -> None:
    """Rank 1 stood first, though rank 0 signed after its mark and rank 1 did not yet."""
    beacons, sightings = (
        [Beacon(tmp_path, rank) for rank in range(2)],
        Sightings(tmp_path, range(2)),
    )
    for rank, kind in ((1, "F"), (0, "B")):
        beacons[rank].mark(kind)
        advance(0.001)
    advance(0.9)
    beacons[0].sign()
    assert _named(sightings) == (1, "F")


@pytest.mark.parametrize("ahead_s", [-900.0, 0.0, 900.0])
@pytest.mark.parametrize("culprit", [0, 1])
def test_the_clocks_of_hosts_may_differ(
    culprit: int, ahead_s: float, tmp_path: Path, advance: Advance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 is of this machine, rank 1 of another; one came to its mark three seconds before the
    other. Both are alive."""
    ranks = [
        Beacon(tmp_path, 0),
        Elsewhere(Beacon(tmp_path, 1), ahead_s, advance, monkeypatch),
    ]
    sightings = Sightings(tmp_path, range(2))
    ranks[culprit].mark("F")
    advance(3.0)
    ranks[1 - culprit].mark("B")
    for _ in range(5):
        advance(1.0)
        for rank in ranks:
            rank.sign()
        sightings.look()
    assert _named(sightings) == (culprit, "F")


def test_one_rank_alone_is_watched_by_its_launcher(tmp_path: Path, advance: Advance) -> None:
    began, sightings = time.monotonic(), Sightings(tmp_path, range(1))
    rank = ranks.Rank(0, None, None)  # type: ignore[arg-type]

    def said(limit_s: float) -> str:
        return ranks.silent_rank(sightings, began, limit_s, [rank])

    assert said(60.0) == ""
    advance(61.0)
    assert "no progress for 60 s: rank 0 on " in said(60.0), "it never came to its start"
    beacon = Beacon(tmp_path, 0)
    beacon.mark("F", 0, 2)
    assert said(60.0) == ""
    advance(61.0)
    assert "no progress for 60 s: rank 0 on " in said(60.0)
    assert "action F, micro-batch 2" in said(60.0) and said(math.inf) == ""
    beacon.sign()
    assert said(60.0) == ""
