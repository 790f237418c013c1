"""When nothing fits: the smallest set of pins that rules everything out, by how much, and what to
change.

Pins are demands next to the device's memory and the size of the model and its sequences. A set of
pins is in conflict when candidates under it alone, all other decisions free, do not fit; sets are
asked by size, so the first one found is a smallest one. The empty set means that the sizes alone do
not fit.
Changes are looked for the same way, under all other pins: one pin, or as few as needed; then more
devices, other ones, shorter sequences, and larger memories under all pins. Where no change of one
kind helps, pins and devices are changed together.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, islice

from meshwright.ir.errors import PlanError

from ..hardware.cluster import Cluster
from ..hardware.usable import usable_bytes
from ..remat.options import CHOSEN
from ..units import gib
from .candidate_costs import CandidateCosts
from .candidates import Candidate, candidates_of
from .elsewhere import larger, other_devices, overfull, states_by_kind
from .fitting import fits, least_bound_bytes, least_peak_bytes, peak_under
from .pins import MESH_PINS, Pins
from .precision import resolve_precision

# Pins that change what a rank holds under the same placements.
MEMORY_PINS = (
    *MESH_PINS, "micro_batch", "zero", "recompute", "schedule", "chunks", "cuts",
    "precision", "reduce_dtype", "optimizer", "offload",
)  # fmt: skip


_MOST_PARTS = 4  # of a peak, that a refusal names
_WITHOUT_MASTERS = (
    "--pin precision=pure --pin rounding=stochastic (weights and moments without float32 masters)"
)


@dataclass
class Refusal:
    """Questions to problems that differ in their pins or sequence."""

    costs: CandidateCosts
    limit_bytes: float
    known: dict[tuple, bool] = field(default_factory=dict)

    def text(self) -> str:
        """Return what is missing, and what would fit."""
        conflict = self.conflict()
        need, text = self._shortage(conflict)
        ways = list(self.changes())
        ways += ["--pin offload=on"] if self.fits_offloading() else []
        ways += [_WITHOUT_MASTERS] if self.fits_without_masters() else []
        short = self.shorter_seq()
        ways += [f"--seq {short} instead of {self.costs.problem.seq}"] if short else []
        ways += self.elsewhere(alone=not ways)
        pinned = tuple(self.pinned())
        most = need if conflict == pinned else self._shortage(pinned)[0]
        ways.append(larger_memory(most / self.limit_bytes, overfull(self.costs.problem)))
        return f"{text}; what would fit: {'; '.join(ways)}"

    def shortage(self) -> tuple[str, float]:
        """Return what is missing under all pins together, and the bytes that a device needs."""
        need, text = self._shortage(tuple(self.pinned()))
        return text, need

    def _shortage(self, conflict: tuple[str, ...]) -> tuple[float, str]:
        """The bytes that a device needs under these pins alone, and what is missing."""
        freed = self.under_alone(conflict)
        if overfull(freed.problem):
            count = freed.problem.cluster.num_devices
            kinds = {kind: size / count for kind, size in states_by_kind(freed.problem).items()}
            need = sum(kinds.values())
            how = "for parameters and their states alone" + (count > 1) * f", shared by all {count}"
            return need, self._missing(conflict, need, how, kinds)
        need, candidate = self.least(conflict)
        kinds = dict(peak_under(freed, candidate, need).bytes_by_kind)
        return need, self._missing(conflict, need, f"at the least found ({candidate})", kinds)

    def _missing(
        self, conflict: tuple[str, ...], need: float, how: str, kinds: dict[str, float]
    ) -> str:
        device, pins = self.costs.problem.cluster.device, self.costs.problem.pins
        names = " and ".join(f"{name}={getattr(pins, name)}" for name in conflict)
        what = names or f"{self.costs.problem.traced.model} at seq {self.costs.problem.seq}"
        if sparing := [f"{name}={getattr(pins, name)}" for name in _sparing(pins)]:
            what += f" under {' and '.join(sparing)}"
        verb = "need" if len(conflict) > 1 else "needs"
        return (
            f"no plan fits: {what} {verb} {gib(need)} a device {how}, "
            f"{gib(need - self.limit_bytes)} too much: {_parts(kinds)}; {device.name} holds "
            f"{gib(device.memory_bytes)}, {gib(self.limit_bytes)} of it usable"
        )

    def pinned(self) -> list[str]:
        """Return the pins that may be asked without."""
        pins = self.costs.problem.pins
        kept = _sparing(pins)
        return [n for n in MEMORY_PINS if getattr(pins, n) is not None and n not in kept]

    def conflict(self) -> tuple[str, ...]:
        """A smallest set of pins under which there are candidates and none fits."""
        names = self.pinned()
        for size in range(len(names)):
            for some in combinations(names, size):
                freed = self.without([n for n in names if n not in some])
                if frugal(freed) and not self.fitting(freed):
                    return some
        return tuple(names)

    def least(self, conflict: tuple[str, ...]) -> tuple[float, Candidate]:
        """Return what the most frugal candidates under these pins alone need at least, and which
        does.

        They are asked in order of a lower bound. One that does not fit into the least so far needs
        more than that.
        """
        freed = self.under_alone(conflict)
        (_, first), *others = sorted((least_bound_bytes(freed, c), c) for c in frugal(freed))
        found = least_peak_bytes(freed, first), first
        for bound, c in others:
            if bound <= found[0] and fits(freed, c, found[0]):
                found = min(found, (least_peak_bytes(freed, c), c))
        return found

    def changes(self) -> Iterator[str]:
        """Fewest pins to change, each set with the nearest values that fit under all others."""
        names = self.pinned()
        for size in range(1, len(names) + 1):
            ways = [way for some in combinations(names, size) if (way := self._change(some))]
            if ways:
                yield from ways
                return

    def _change(self, names: tuple[str, ...]) -> str:
        freed = self.without(names)
        found = self.fitting(freed)
        if not found:
            return ""
        old = self.costs.problem.pins
        nearest = min(found, key=lambda c: (sum(_far(c, old, n) for n in names), c))
        return " and ".join(_words(nearest, old, n) for n in names)

    def shorter_seq(self) -> int | None:
        """The longest of half the sequence, a quarter of it and so on that fits."""
        seq = self.costs.problem.seq // 2
        while seq >= self.costs.problem.budget.least_seq:
            if self.any_fits(self.costs.under(seq=seq)):
                return seq
            seq //= 2
        return None

    def elsewhere(self, alone: bool) -> Iterator[str]:
        """Yield clusters of the catalogue on which something fits: the nearest with more of the
        same devices, then the nearest other devices, as many of them. alone: nothing else that was
        tried helps; where no cluster does either, the nearest under other pins."""
        problem = self.costs.problem
        more, others = larger(problem.cluster), other_devices(problem.cluster)
        found = self._holding(more)[:1], self._holding(others)[: problem.budget.max_parts]
        if not any(found) and alone and self.pinned():
            found = (
                self._with_pins(larger(problem.cluster)),
                self._with_pins(other_devices(problem.cluster)),
            )
        for names in found:
            if names:
                yield f"--cluster {' or '.join(names)}"

    def _holding(self, clusters: Iterable[Cluster]) -> list[str]:
        """Return the clusters on which something fits under all pins, up to the most that are
        tried."""
        asked = (a for a in self._asked(clusters) if a.any_fits(a.costs))
        return [a.costs.problem.cluster.name for a in asked]

    def _with_pins(self, clusters: Iterable[Cluster]) -> list[str]:
        """Return the first cluster on which something fits under fewer pins, with these changed."""
        for asked in self._asked(clusters):
            if asked.fitting(asked.under_alone(())):
                way = next(asked.changes())
                return [f"{asked.costs.problem.cluster.name} and {way}"]
        return []

    def _asked(self, clusters: Iterable[Cluster]) -> "Iterator[Refusal]":
        """Yield the question on each of the first clusters that can hold parameters and states."""
        able = (c for c in clusters if not overfull(self.costs.problem, c))
        for cluster in islice(able, self.costs.problem.budget.max_clusters):
            other = self.costs.under(cluster=cluster, placing=None)
            yield Refusal(other, usable_bytes(cluster))

    def fits_without_masters(self) -> bool:
        """Return whether something fits with weights, moments and sums in the plan's dtype."""
        problem = self.costs.problem
        masters = resolve_precision(problem.traced.dtype, problem.pins) == "master"
        return masters and self._fits_under(
            replace(problem.pins, precision="pure", rounding="stochastic")
        )

    def fits_offloading(self) -> bool:
        """Return whether something fits with activations in the host's memory."""
        problem = self.costs.problem
        return not problem.offloads and self._fits_under(replace(problem.pins, offload="on"))

    def _fits_under(self, pins: Pins) -> bool:
        other = self.costs.under(pins=pins)
        return Refusal(other, self.limit_bytes).any_fits(other)

    def under_alone(self, names: tuple[str, ...]) -> CandidateCosts:
        """Return the costs with all pins free but these."""
        return self.without([n for n in self.pinned() if n not in names])

    def without(self, names: tuple[str, ...] | list[str]) -> CandidateCosts:
        """Return the costs with these pins free; the placements stay."""
        pins = replace(self.costs.problem.pins, **dict.fromkeys(names))
        return self.costs.under(pins=pins)

    def fitting(self, costs: CandidateCosts) -> list[Candidate]:
        """The frugal candidates that fit; none when the pins contradict each other."""
        return list(self._fitting(costs))

    def any_fits(self, costs: CandidateCosts) -> bool:
        """Return whether a frugal candidate fits."""
        return any(True for _ in self._fitting(costs))

    def _fitting(self, costs: CandidateCosts) -> Iterator[Candidate]:
        """Those on the fewest compute devices first, as one device needs no placements."""
        if not overfull(costs.problem):
            by_size = sorted(frugal(costs), key=lambda c: c.compute.num_devices)
            yield from (c for c in by_size if self._fits(costs, c))

    def _fits(self, costs: CandidateCosts, c: Candidate) -> bool:
        pins = costs.problem.pins
        key = (c, costs.problem.seq, pins.cuts, costs.precision(c), costs.problem.offloads)
        if key not in self.known:
            stores = costs.stored_bytes(c) <= self.limit_bytes
            self.known[key] = stores and fits(costs, c, self.limit_bytes)
        return self.known[key]


def larger_memory(times: float, at_least: bool) -> str:
    """Return how much larger a device has to be. at_least: for the states alone, which is rounded
    down as no plan fits into that; else what is enough, rounded up."""
    about = f"more than {math.floor(100 * times) / 100:.4g}"
    said = about if at_least else f"about {math.ceil(10 * times) / 10:.1f}"
    return f"{said} times the memory of a device"


def _sparing(pins: Pins) -> list[str]:
    """Return the pins in whose place a default would come that takes more memory."""
    found = {"precision": pins.precision == "pure", "optimizer": pins.optimizer is not None}
    return [name for name, less in found.items() if less]


def _parts(bytes_by_kind: dict[str, float]) -> str:
    """Return the kinds of memory that make up most of a peak, the largest first."""
    kinds = sorted(bytes_by_kind.items(), key=lambda kind: -kind[1])[:_MOST_PARTS]
    return ", ".join(f"{kind} {gib(size)}" for kind, size in kinds if size)


def frugal(costs: CandidateCosts) -> list[Candidate]:
    """Return of every mesh the candidate that needs least: the thriftiest of each free decision."""
    problem = costs.problem
    sizes = problem.cluster, problem.global_batch
    try:
        pins, budget = problem.pins, problem.budget
        space = candidates_of(problem.traced, *sizes, pins, budget, problem.split)
    except PlanError:
        return []

    def thrift(c: Candidate) -> tuple:
        return c.micro_batch, -c.zero, c.schedule == "gpipe", c

    best: dict[tuple, Candidate] = {}
    for c in sorted(space, key=thrift):
        best.setdefault((c.pp, c.rep, c.dp, c.cp, c.tp), c)
    return list(best.values())


def _far(c: Candidate, old: Pins, name: str) -> float:
    """How far a changed pin is from what it was: sizes by their ratio, ZeRO by levels."""
    before, after = getattr(old, name), getattr(c, name, None)
    if name == "zero":
        return abs(before - after)
    if isinstance(before, int) and isinstance(after, int):
        return abs(math.log2(after / before))
    return 0.0


def _words(c: Candidate, old: Pins, name: str) -> str:
    before, after = getattr(old, name), getattr(c, name, None)
    if name == "cuts":
        return "other cuts"
    if after is None or after == CHOSEN:
        return f"{name} left to the search instead of {before}"
    return f"{name}={after} instead of {before}"
