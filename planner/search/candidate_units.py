"""The units of a candidate before they are cut into stages, and what its bounds ask of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.ir.plan import Bucket, InstancePlan, Param

from ..bounds.analytic import OptionTimes, slack_us
from ..remat.options import Menu, Menus
from ..simulate.step_model import UnitTable


@dataclass(frozen=True)
class Layout:
    """Instances and buckets of a mesh, all on one stage."""

    instances: tuple[InstancePlan, ...]
    buckets: tuple[Bucket, ...]
    params: tuple[Param, ...]


@dataclass(frozen=True)
class Parts:
    """The units of a candidate in order, as if on one stage, each with its levels.

    kinds: a number for each unit, the same for those with equal levels and buckets.
    """

    table: UnitTable
    menus: tuple[Menu, ...]
    kinds: tuple[int, ...]
    plain: OptionTimes
    full: OptionTimes

    @cached_property
    def at_plain(self) -> Menus:
        return Menus.of(self.menus, self.plain)

    @cached_property
    def at_full(self) -> Menus:
        return Menus.of(self.menus, self.full)

    @cached_property
    def slack_us(self) -> float:
        return slack_us(self.menus, self.plain, self.full)

    @cached_property
    def least_us(self) -> float:
        """Compute of a micro-batch at the fastest levels."""
        return sum(min(map(sum, levels)) for levels in self.plain)

    @cached_property
    def least_passing_bytes(self) -> float:
        """Return what every function has alive in backward at least."""
        return min(u.work.backward.peak_bytes for menu in set(self.menus) for u in menu)

    def sends_us(self, ranks: Sequence[int], any_order: bool = False) -> tuple[float, ...]:
        """Return the least time from every stage to the next; ranks: of the stages. any_order:
        whichever of pp and dp is the outer axis."""
        least = min(menu[0].work.exit_bytes for menu in self.menus[:-1])
        links = self.table.links
        transfer = links.least_transfer_us if any_order else links.transfer_us
        hops = list(zip(ranks, ranks[1:], strict=False))
        us = {hop: transfer(least, *hop) for hop in set(hops)}  # chunks pass the same ranks again
        return tuple(us[hop] for hop in hops)


def piece_at(piece: str, level: int) -> str:
    """The key of a piece at a level in a table of works."""
    return f"{piece}#{level}"


def with_levels(
    instances: tuple[InstancePlan, ...], levels: Sequence[int]
) -> tuple[InstancePlan, ...]:
    """Instances of pieces at levels, as a table of works names them."""
    return tuple(
        replace(i, piece=piece_at(i.piece, k)) for i, k in zip(instances, levels, strict=True)
    )
