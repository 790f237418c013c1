"""Dry runs of programs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import one_class
from .programs import Program
from .runs import Trainer

if TYPE_CHECKING:
    from meshwright.runtime.dry.found import DryRun


@one_class
def dry_run(program: Program | str | Path, **options: Any) -> "DryRun":
    """Run one step of a program without memory, devices or peers, rank by rank, on one CPU.

    options: as Trainer takes them; the optimizer's count. Raises MeshwrightError for a program that
    fails, whose messages between ranks do not meet, or whose ranks wait for each other.
    """
    from meshwright.runtime.given import check_program
    from meshwright.runtime.launch.dry import start_dry

    trainer = Trainer(program, **options)
    check_program(trainer.program)
    return start_dry(trainer.program, asdict(trainer.options))
