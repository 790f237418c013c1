"""Pins: the decisions a user fixes, and defaults for those left open."""

import difflib
import math
from dataclasses import dataclass, fields, replace

from meshwright.ir.errors import PlanError
from meshwright.ir.traced import Traced

from ..hardware.topology import OUTER
from ..pipeline.schedules import FORWARDS_FIRST, GENERATORS
from ..sharding.sequence_orders import ORDERS

MOST = {"zero": 3, "shard_weights": 1, "shard_sequence": 1}
# The sizes of mesh axes.
MESH_PINS = ("pp", "rep", "dp", "cp", "tp")
# Known before a model is traced.
CHOICES: dict[str, tuple[str, ...]] = {
    "schedule": GENERATORS,
    "precision": ("pure", "master"),
    "rounding": ("nearest", "stochastic"),
    "reduce_dtype": ("bf16", "f32"),
    "offload": ("on", "off"),
    "outer": OUTER,
    "cp_order": ORDERS,
}


@dataclass(frozen=True)
class Pins:
    """Fixed decisions; None leaves the choice to the planner.

    pp, rep, dp, cp, tp: mesh axis sizes (pipeline, replicas of sharded storage, data, context,
    tensor). micro_batch: rows of one data-parallel rank in a micro-batch.
    zero: 0 replicated, 1 optimizer state, 2 and gradients, 3 and parameters sharded over
    dp x cp.
    recompute: cheap, all, none, or names of values. chunks: stages of a rank, of the interleaved
    schedule. cuts: first instance of every stage but the first, e.g. "5,9". price: value of a
    resident byte in us (None: from the cluster).
    shard_weights: 1 forces matmul weights to be sharded over tp. shard_sequence: 0 leaves the
    sequence whole over tp, as tensor parallelism without sequence parallelism has it; a byte then
    has no price unless one is pinned.
    precision: pure (all in the plan's dtype) or master (gradients summed, moments and master
    weights in float32; None: master under bf16). rounding: of updated weights that are bf16
    alone, nearest or stochastic. reduce_dtype: in which gradients travel between ranks, bf16 or
    f32 (None: as they are summed).
    optimizer: whose state and traffic are counted, and which a run takes if told of no other.
    offload: whether the search may keep activations in the host's memory (None: where it chooses
    what is kept, on devices with a memory of their own). outer: which of pp and dp has its
    neighbours the farthest apart (None: pp, and over several nodes the search's choice). cp_order:
    how cp cuts the sequence, contiguous or mirrored (None: the cheaper placements).
    """

    pp: int | None = None
    rep: int | None = None
    dp: int | None = None
    cp: int | None = None
    tp: int | None = None
    micro_batch: int | None = None
    zero: int | None = None
    recompute: str | None = None
    schedule: str | None = None
    chunks: int | None = None
    cuts: str | None = None
    price: float | None = None
    shard_weights: int | None = None
    shard_sequence: int | None = None
    precision: str | None = None
    rounding: str | None = None
    reduce_dtype: str | None = None
    optimizer: str | None = None
    offload: str | None = None
    outer: str | None = None
    cp_order: str | None = None

    @property
    def num_stages(self) -> int | None:
        """Return how many stages pinned cuts make, None where cuts are free."""
        return None if self.cuts is None else self.cuts.count(",") + 2


def parse_pins(texts: list[str]) -> Pins:
    """Pins from `KEY=VALUE` texts; raises PlanError naming the nearest key or the bad value."""
    kinds = {f.name: f.type for f in fields(Pins)}
    given: dict[str, object] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in kinds:
            near = difflib.get_close_matches(key.lower(), kinds, 1)
            hint = f"; did you mean {near[0]}" if near else ""
            raise PlanError(f"pin {text!r}: unknown key {key!r}{hint}; keys: {', '.join(kinds)}")
        if key in given:
            raise PlanError(f"pin {key}: given twice, {given[key]} and {value}; give it once")
        given[key] = _convert(key, value, str(kinds[key]))
    return Pins(**given)  # type: ignore[arg-type]


def pins_for(traced: Traced, pins: Pins) -> Pins:
    """Return the pins with the schedule that a model leaves no choice of.

    The loss of routers is of a whole batch, so that no backward may begin before the last forward
    has ended. Raises PlanError where another schedule is pinned.
    """
    if not traced.has_router_loss:
        return pins
    if pins.schedule not in (None, FORWARDS_FIRST) or (pins.chunks or 1) > 1:
        asked = f"schedule={pins.schedule}" if pins.schedule else f"chunks={pins.chunks}"
        raise PlanError(
            f"{asked}: the loss of the model's routers is of all micro-batches together, so that "
            f"their forwards come before the first backward; pin schedule={FORWARDS_FIRST}, or "
            "train without it (output_router_logits = false)"
        )
    return replace(pins, schedule=FORWARDS_FIRST)


def _convert(key: str, value: str, kind: str) -> object:
    if kind.startswith("str"):
        if not value:
            raise PlanError(f"pin {key}=: no value; leave the pin out to let the search choose")
        if key in CHOICES and value not in CHOICES[key]:
            raise PlanError(f"pin {key}={value}: unknown; give one of {', '.join(CHOICES[key])}")
        return value
    try:
        number = float(value) if kind.startswith("float") else int(value)
    except ValueError:
        raise PlanError(f"pin {key}={value}: expected a number, got {value!r}") from None
    least = 0 if key in ("zero", "price", "shard_weights", "shard_sequence") else 1
    most = MOST.get(key, math.inf)
    if not (least <= number <= most and math.isfinite(number)):
        limit = f"at least {least}" if math.isinf(most) else f"{least} to {most}"
        raise PlanError(f"pin {key}={value}: expected {limit}, got {value}")
    return number
