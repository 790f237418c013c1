"""Learning-rate schedules: pure functions of the step."""

import math

SCHEDULES = ("constant", "linear", "cosine", "wsd", "inverse-sqrt", "rex", "none")


def learning_rate(
    step: int,
    *,
    schedule: str,
    peak: float,
    warmup: int,
    total: int,
    floor: float = 0.0,
    decay: int | None = None,
) -> float:
    """The rate of optimizer step `step`, counted from 0, of a run of `total` steps.

    Warm-up, the first `warmup` steps: peak * (step + 1) / warmup, so that no step has rate 0.
    After it, with t = (step - warmup) / (total - warmup), from 0 at the first step to 1 at `total`:

        constant      peak
        linear        peak + (floor - peak) * t
        cosine        floor + (peak - floor) * (1 + cos(pi t)) / 2 (arXiv 1608.03983)
        wsd           peak until the last `decay` steps, then linear to floor (arXiv 2405.18392)
        inverse-sqrt  peak * sqrt(w / (w + step - warmup)), w = max(warmup, 1), not below floor
                      (arXiv 1706.03762, section 5.3)
        rex           floor + (peak - floor) * 2 (1 - t) / (2 - t) (arXiv 2107.04197, section 3)

    none is peak throughout, without warm-up.

    peak, floor: absolute rates. decay: steps, for wsd only; a tenth of the run when None.
    From step `total` on the decaying schedules stay at floor.
    Raises ValueError for an unknown schedule, or spans and rates that do not fit.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; choose from {', '.join(SCHEDULES)}")
    _check_rates(peak, floor)
    tail = _tail(schedule, warmup, total, decay)
    if schedule == "none":
        return peak
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    if schedule == "inverse-sqrt":
        start = max(warmup, 1)
        return max(floor, peak * math.sqrt(start / (start + step - warmup)))
    # Every other schedule falls over its last `tail` steps; all but wsd start to fall at once.
    t = min(max(0.0, (step - (total - tail)) / tail), 1.0) if tail else float(step >= total)
    if schedule == "cosine":
        return floor + (peak - floor) * (1.0 + math.cos(math.pi * t)) / 2.0
    if schedule == "rex":
        return floor + (peak - floor) * 2.0 * (1.0 - t) / (2.0 - t)
    return peak + (floor - peak) * t


def _tail(schedule: str, warmup: int, total: int, decay: int | None) -> int:
    """How many steps at the end the rate falls."""
    if not 0 <= warmup <= total or total < 1:
        raise ValueError(f"warmup of {warmup} steps does not fit into a total of {total}")
    if schedule != "wsd":
        return total - warmup
    if decay is None:
        return min(math.ceil(total / 10), total - warmup)
    if not 0 <= decay <= total - warmup:
        raise ValueError(
            f"decay of {decay} steps after a warmup of {warmup} does not fit into a total of "
            f"{total}; give at most {total - warmup}"
        )
    return decay


def _check_rates(peak: float, floor: float) -> None:
    if not 0.0 <= floor <= peak:
        raise ValueError(f"floor {floor} and peak {peak} must satisfy 0 <= floor <= peak")
