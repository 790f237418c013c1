"""What a dry run finds."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DryRank:
    """A rank of a dry run. Sizes are in bytes.

    coordinates: by axis. pipeline_rank: its place along the pipeline. actions: of its schedule.
    messages: that it begins in a step. sent_bytes: handed to others in a step, by axes that they
    lie along. held_bytes: between steps. peak_bytes: at most, of what outlives a function; at: in
    this action.
    """

    rank: int
    coordinates: dict[str, int]
    pipeline_rank: int
    actions: int
    messages: int
    sent_bytes: dict[str, int]
    held_bytes: int
    peak_bytes: int
    at: str


@dataclass(frozen=True)
class DryRun:
    """A program that runs to the end of a step. ranks: those that were run, of `world`."""

    mesh: dict[str, int]
    world: int
    ranks: tuple[DryRank, ...]
    seconds: float
