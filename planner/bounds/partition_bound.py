"""How short the pipeline of a step can be at best, under any contiguous cuts.

A limit on the step is met when stages, packed in order, each as far as the limit and its memory
allow, take all units: whatever a stage leaves to those behind it makes theirs longer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from operator import le

from ..pipeline.partition import MemoryCost, no_memory_cost
from .each import of_each

INF = float("inf")
# Shares that bounds may be below what could be proven, and those that are enough.
CLOSE, COARSE = 1e-6, 1e-2


@dataclass(frozen=True)
class LeastTimes:
    """Least times of one micro-batch through each unit, whatever its option.

    both: least of a forward and a backward under one option. longest_forward: the most. reduce: of
    its gradients, where they start in the last backward (0 where they run after every one). slowed:
    how much longer its last backward takes beside the reductions of the next unit on its stage.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    both: Sequence[float]
    longest_forward: Sequence[float]
    reduce: Sequence[float]
    slowed: Sequence[float]

    @staticmethod
    def of(
        times: Sequence[Sequence[tuple[float, float]]], reduce: Sequence[float], price: float = 0.0
    ) -> "LeastTimes":
        """times: (forward, backward) by unit and option. price: of overlap, a share."""
        forward, backward, both, longest = zip(*of_each(_extremes, times), strict=True)
        behind = zip((*reduce[1:], 0.0), backward, strict=True)
        slowed = [price * min(late, us) for late, us in behind]
        return LeastTimes(forward, backward, both, longest, reduce, slowed)

    @cached_property
    def sums(self) -> tuple[list[float], ...]:
        """Return sums over the units ahead of each: of all fields in order, but `both` last."""
        fields = self.forward, self.backward, self.longest_forward, self.reduce, self.slowed
        return tuple([0.0, *accumulate(one)] for one in (*fields, self.both))

    @cached_property
    def grows(self) -> bool:
        """Return whether a stage takes longer with each further unit."""
        return all(map(le, self.longest_forward, self.both))

    @cached_property
    def behind(self) -> list[float]:
        """Return what a forward and a backward of each unit and those behind it take, apart."""
        apart = [f + b for f, b in zip(self.forward, self.backward, strict=True)]
        return [*accumulate(reversed(apart), initial=0.0)][::-1]


def _extremes(times: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    """Return the least forward, backward and sum of both under any option, and the longest
    forward."""
    forward, backward = zip(*times, strict=True)
    return min(forward), min(backward), min(f + b for f, b in times), max(forward)


def pipeline_bound(
    units: LeastTimes,
    num_stages: int,
    num_microbatches: int,
    warmup: Callable[[int], int],
    memory: MemoryCost | None = None,
    send_us: float = 0.0,
    silent: int = 0,
    enough_us: float = INF,
) -> float:
    """Return a bound on the step under any cuts into contiguous stages that fit; inf where none do.
    From `enough_us` on it is a coarse one.

    warmup: by stage, the forwards w_s before its first backward, which cannot come before the first
    micro-batch has passed all later stages (m for GPipe does not delay it: 1). send_us: d, the
    least of a transfer to the next stage. silent: the most first stages that get no gradient of
    their output; the transfers back to them are left out below, of 2 s and of 2 (n - 1). With
    t = f + b of stage s of n, x of it because memory is short, P the sum of t ahead of it, U behind
    it, T of all, and R its reductions:

        step >= m t + P + 2 s d + e
        step >= T + (m - w) t + (w - 1) b + 2 (n - 1) d + e    w forwards, then a backward
        step >= U + (m - w) t + (w - 1) b + f + R         from the start of its last backward

    where e is what the last backward is slowed by on this stage and those ahead of it, but for one
    unit of each, as no reduction runs before it. P and U are summed over least times, T too but for
    x; b is at least t less the longest f. With one micro-batch the third may fall when a unit joins
    a stage, so it is left out.
    """
    warmups = [warmup(s) for s in range(num_stages)]
    limits = _Limits(units, num_microbatches, warmups, memory, send_us, silent)
    if not limits.packed_at(INF)[0]:
        return INF
    whole = sum(units.both)
    busy = num_microbatches * whole / num_stages  # of the mean stage
    low = max(whole, busy, num_microbatches * send_us * (num_stages > 1))
    if low < enough_us < INF:
        met, nearest = limits.packed_at(enough_us)
        low = low if met else nearest
    return _least(limits.packed_at, low, COARSE if low >= enough_us else CLOSE)


# Whether a limit is met, and the least limit under which stages are the same, or the next under
# which one of them takes more.
Packed = tuple[bool, float]


def _least(packed_at: Callable[[float], Packed], low: float, close: float = CLOSE) -> float:
    """Return the most, within a share `close`, below which no limit is met. low: such a limit.

    The step up from it doubles until a limit is met, which is then near.
    """
    step, met, high = 0.02 * low, False, low
    while not met:
        met, nearest = packed_at(low + step)
        if met:
            high = nearest
        elif nearest == INF:
            return INF
        else:
            low, step = nearest, 2 * step
    while high - low > close * high:
        met, nearest = packed_at((low + high) / 2)
        low, high = (low, nearest) if met else (nearest, high)
    return min(low, high)


class _Limits:
    """The inequalities of `pipeline_bound`, asked at one limit after another."""

    def __init__(
        self,
        units: LeastTimes,
        m: int,
        warmups: list[int],
        memory: MemoryCost | None,
        send_us: float,
        silent: int,
    ) -> None:
        self.units, self.m, self.warmups, self.memory = units, m, warmups, memory
        self.extras: dict[tuple[int, int], _Extra] = {}
        self.counts = [1] * len(warmups)  # units of each stage at the last limit
        self.sends_us = [send_us * (s + max(0, s - silent)) for s in range(len(warmups))]
        self.through, self.behind = sum(units.both) + self.sends_us[-1], units.behind
        # One unit of this stage and of each ahead of it: no reduction runs before it.
        self.ahead = [(s + 1) * max(units.slowed) for s in range(len(warmups))]
        forward, backward, longest, reduce, slowed, both = units.sums
        self.forward, self.backward, self.longest = forward, backward, longest
        self.reduce, self.slowed, self.both = reduce, slowed, both
        # Then a stage takes longer with each unit, and the first too many is found by halves.
        grows = memory is None and units.grows
        self.packed = self._packed_by_halves if grows else self._packed

    def packed_at(self, limit: float) -> Packed:
        """Pack stages in order, each as far as it may, and return whether they take all units."""
        index, longest, following = 0, 0.0, INF
        for stage, warmup in enumerate(self.warmups):
            if index == len(self.units.both):
                break
            index, taken, more = self.packed(index, warmup, stage, limit)
            longest, following = max(longest, taken), min(following, more)
        met = index == len(self.units.both)
        return met, longest if met else following

    def _packed(self, index: int, w: int, stage: int, limit: float) -> tuple[int, float, float]:
        """Return the first unit that a stage starting at `index` cannot take; the least limit under
        which it takes those before, and that one."""
        extra, step_us = self._extra(stage, index), self._step_us(index, w, stage)
        longest = 0.0
        while index < len(self.units.both):
            us = step_us(index, extra.at(index))
            if us > limit:
                return index, longest, us
            longest = max(longest, us)
            index += 1
        return index, longest, INF

    def _packed_by_halves(
        self, index: int, w: int, stage: int, limit: float
    ) -> tuple[int, float, float]:
        """Return the same, where no memory is short and each unit adds to the time.

        Limits come close to each other, so a stage mostly has as many units as at the last one.
        """
        first, low, high = index - 1, index - 1, len(self.units.both)
        step_us, us = self._step_us(index, w, stage), {low: 0.0, high: INF}
        last, step = min(first + max(1, self.counts[stage]), high - 1), 1
        while high - low > 1:  # units up to low are taken
            us[last] = step_us(last)
            if us[last] > limit:
                last, high = last - step, last
            else:
                last, low = last + step, last
            step *= 2
            if not low < last < high:
                last = (low + high) // 2
        self.counts[stage] = low - first
        return low + 1, us[low], us[high]

    def _step_us(self, first: int, w: int, stage: int) -> Callable[..., float]:
        """Return the least step with a stage that begins with a unit: by its last one, and the us
        of its units for short memory."""
        m, start = self.m, self.both[first] + self.sends_us[stage]
        both, backward, longest, slowed = self.both, self.backward, self.longest, self.slowed
        forward, reduce, through, behind = self.forward, self.reduce, self.through, self.behind
        before, backward_before, longest_before = both[first], backward[first], longest[first]
        forward_before, reduce_before = forward[first], reduce[first]
        ahead, later, waits = self.ahead[stage], m - w, w - 1

        def step_us(last: int, more: float = 0.0) -> float:
            stop = last + 1
            t = both[stop] - before + more
            last_pass = slowed[stop] - ahead
            if last_pass < 0.0:
                last_pass = 0.0
            us = m * t + start + last_pass
            back, steady = backward[stop] - backward_before, later * t
            shorter = t - (longest[stop] - longest_before)
            late = waits * (shorter if shorter > back else back)
            other = through + more + steady + late + last_pass
            if other > us:
                us = other
            if m > 1:
                started = forward[stop] - forward_before + reduce[stop] - reduce_before
                other = behind[stop] + steady + waits * back + started
                if other > us:
                    us = other
            return us

        return step_us

    def _extra(self, stage: int, first: int) -> "_Extra":
        """What memory adds to a stage that begins at a unit: the same whatever the limit."""
        if (stage, first) not in self.extras:
            of = self.memory(stage) if self.memory is not None else no_memory_cost
            self.extras[stage, first] = _Extra(of, first)
        return self.extras[stage, first]


@dataclass(frozen=True)
class _Extra:
    """Times that memory adds to a stage with each further unit, each computed once.

    first: the unit that the stage begins with. known: times of its first units.
    """

    of: Callable[[int], float]
    first: int
    known: list[float] = field(default_factory=list)

    def at(self, index: int) -> float:
        """Return what memory adds with a unit; units are asked for in order."""
        if index - self.first == len(self.known):
            self.known.append(self.of(index))
        return self.known[index - self.first]


def warmup_bound(
    forward: Sequence[float], both: Sequence[float], num_stages: int, num_microbatches: int
) -> float:
    """Return a bound on the step under any cuts, when a stage waits for earlier ones only to start.

    forward, both: of one micro-batch through each unit, both with its backward. A stage of t starts
    after the forwards P ahead of it: step >= m t + P.
    """
    busy = num_microbatches * sum(both) / num_stages  # of the mean stage
    packed_at = partial(_started, forward, both, num_stages, num_microbatches)
    return _least(packed_at, max(sum(forward), busy))


def _started(
    forward: Sequence[float], both: Sequence[float], num_stages: int, m: int, limit: float
) -> Packed:
    """Pack stages in order, each as far as it may, and return whether they take all units."""
    before, index, longest, following = 0.0, 0, 0.0, INF
    for _ in range(num_stages):
        busy = ahead = us = 0.0
        while index < len(both):
            us = m * (busy + both[index]) + before
            if us > limit:
                following = min(following, us)
                break
            longest = max(longest, us)
            busy += both[index]
            ahead += forward[index]
            index += 1
        before += ahead
    met = index == len(both)
    return met, longest if met else following
