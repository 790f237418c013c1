"""A bound below a simulated step, for a hundredth of its time."""

from ..pipeline.closings import LAST, Node
from ..pipeline.critical_path import Waits
from .step_model import StepModel, Unit

# By what share sums may be rounded.
ROUNDED = 1e-9


def least_step_us(model: StepModel, waits: Waits) -> float:
    """Return a bound on the step that `simulate` finds, in us. waits: of its schedule, or of one
    whose actions wait for no more.

    The bound is the longest path of actions that take their compute alone: the simulator lets each
    begin after all that it waits for, slows compute beside collectives, and waits for these.
    """
    node_us = {
        (stage, kind): _alone_us(units, kind, model.reduces_every_microbatch)
        for stage, units in enumerate(model.stages)
        for kind in _kinds(units)
    }
    tails = zip(model.optimizer_us, model.refresh_us, strict=True)
    tail = model.sync_us + max(optimizer + refresh for optimizer, refresh in tails)
    return (waits.longest_us(_with_last(node_us), model.send_us) + tail) * (1 - ROUNDED)


def _kinds(units: tuple[Unit, ...]) -> tuple[str, ...]:
    split = all(unit.work.split is not None for unit in units)
    return ("F", "B", "I", "W") if split else ("F", "B")


def _alone_us(units: tuple[Unit, ...], kind: str, reduces: bool) -> float:
    """Return the compute of an action, with what compute waits for before reductions."""
    if kind == "F":
        return sum(unit.pass_us(kind) for unit in units)
    trained = [unit for unit in units if unit.work.runs_backward]
    waited = sum(unit.blocking_us for unit in trained if reduces and unit.completes_in(kind))
    return sum(unit.pass_us(kind) for unit in trained) + waited


def _with_last(node_us: dict[Node, float]) -> dict[Node, float]:
    """Return times that the last backward of each stage has, too."""
    last = {(stage, LAST): us for (stage, kind), us in node_us.items() if kind == "B"}
    return node_us | last
