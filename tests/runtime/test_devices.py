"""The peaks that mfu is measured against cover every card of the planner's catalogue."""

import pytest

from meshwright.planner.hardware.catalogue import CATALOGUE
from meshwright.runtime.metrics.devices import PEAKS, peak_of

CARDS = [name for name in CATALOGUE if name != "cpu"]
# The catalogue's rates of these are measured, not of the data sheet.
MEASURED = {"h200", "h200-4gpu"}


@pytest.mark.parametrize("name", CARDS)
def test_every_card_of_the_catalogue_has_a_peak(name: str) -> None:
    device = CATALOGUE[name].device
    peak = peak_of(device.name)
    assert peak is not None, f"{device.name} is none of {', '.join(PEAKS)}"
    if name in MEASURED:
        assert peak > dict(device.matmul_flops_per_s)["bf16"]
    else:
        assert peak == dict(device.matmul_flops_per_s)["bf16"]


def test_an_unknown_card_has_none() -> None:
    assert peak_of("NVIDIA T4") is None
