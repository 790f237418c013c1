"""What is said of a GPU's health, and when."""

import json
from dataclasses import replace
from pathlib import Path

from meshwright.runtime.metrics.health import GpuHealth, Health, complaints

GOOD = GpuHealth(0, "H200", 50, 1980, 1980, 600.0, 0, 0)


def test_a_good_card_is_not_talked_about() -> None:
    assert complaints(None, GOOD) == complaints(GOOD, replace(GOOD, temperature_c=80)) == []


def test_each_fault_is_said_once() -> None:
    hot = replace(GOOD, clock_mhz=900, temperature_c=91, throttled=0x40)
    assert complaints(GOOD, hot) == [
        "GPU 0 (H200): slowed down to 900 of 1980 MHz at 91 C (reasons 0x40)"
    ]
    assert complaints(hot, hot) == []
    assert "2 memory errors" in complaints(GOOD, replace(GOOD, ecc_errors=2))[0]
    assert complaints(replace(GOOD, ecc_errors=2), replace(GOOD, ecc_errors=2)) == []
    assert "fault 79 (Xid)" in complaints(GOOD, replace(GOOD, xid=79))[0]


def test_the_last_reading_stands_in_the_run_folder(tmp_path: Path) -> None:
    said: list[str] = []
    health = Health(tmp_path, "node-1", said.append, lambda: [replace(GOOD, xid=79)])
    health.look()
    health.look()
    health.close()
    kept = json.loads((tmp_path / "health" / "node-1.json").read_text())
    assert kept["host"] == "node-1" and kept["gpus"][0]["temperature_c"] == 50
    assert said == ["node-1: GPU 0 (H200): the driver tells of fault 79 (Xid)"]
