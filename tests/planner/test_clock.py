"""Every moment of a search counts once, to the innermost layer."""

import itertools

from meshwright.planner.clock import Clock


def test_a_layer_within_another_takes_its_own_time_from_it() -> None:
    ticks = itertools.count()
    clock = Clock(lambda: float(next(ticks)))  # a second between any two looks
    with clock.layer("outer"):
        with clock.layer("inner"):
            pass
        with clock.layer("inner"):
            pass
    with clock.layer("outer"):
        pass
    assert clock.seconds == {"outer": 4.0, "inner": 2.0}
    assert clock.text() == "outer 4.0 s, inner 2.0 s"
