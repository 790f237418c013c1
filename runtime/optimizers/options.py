"""What an optimizer is told: its name, numbers and parameter groups. Torch is not needed."""

import fnmatch
import math
from dataclasses import dataclass

# Tensors of a matrix's size that a checkpoint holds of each matrix, by the name of the optimizer.
STORED = {
    "adamw": 3,
    "sgd": 2,
    "lion": 2,
    "schedule-free": 4,
    "muon": 2,
    "adafactor": 1,
}
NAMES = tuple(STORED)
ROUNDINGS = ("nearest", "stochastic")
MUON_SCALES = ("adamw", "original")
ROUTER_BIAS_RATE = 1e-3  # of DeepSeek-V3, most of its training
_KEYS = ("lr_scale", "weight_decay")


class GroupError(ValueError):
    """A parameter group that cannot be read, or matches nothing."""


@dataclass(frozen=True)
class Group:
    """Parameters whose logical name fits the shell wildcard `match`.

    lr_scale: factor of the learning rate. weight_decay: of all of them; None: the run's, and none
    for vectors.
    """

    match: str
    lr_scale: float = 1.0
    weight_decay: float | None = None


@dataclass(frozen=True)
class OptimizerOptions:
    """name: one of NAMES. weight_decay: of matrices. clip: of the global norm, 0 for none.

    beta1, beta2, eps: of adamw, lion (no eps), schedule-free and muon's vectors. momentum: of sgd
    and muon; nesterov: of sgd. muon_scale: of a matrix's update, see muon.py. rounding: of weights
    narrower than float32. groups: the first that matches a parameter counts.
    router_bias_rate: of biases that the load of experts moves; 0 holds them. seed: of stochastic
    rounding.

    skip_bad: leave weights and state as they are where the loss or norm is not finite, or spikes;
    else raise BadStepError. All ranks decide alike, as both numbers are the whole model's.
    """

    name: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = False
    muon_scale: str = "adamw"
    rounding: str = "nearest"
    clip: float = 1.0
    groups: tuple[Group, ...] = ()
    router_bias_rate: float = ROUTER_BIAS_RATE
    seed: int = 0
    skip_bad: bool = False

    def group_of(self, param: str, decays: bool) -> Group:
        """The first group that fits, its decay filled in; `decays`: by default."""
        default = self.weight_decay if decays else 0.0
        for group in self.groups:
            if fnmatch.fnmatchcase(param, group.match):
                decay = default if group.weight_decay is None else group.weight_decay
                return Group("", group.lr_scale, decay)
        return Group("", 1.0, default)

    def check_groups(self, params: list[str]) -> None:
        """Raise GroupError for a group that no parameter fits."""
        for group in self.groups:
            if not any(fnmatch.fnmatchcase(name, group.match) for name in params):
                raise GroupError(
                    f"--group {group.match}: fits 0 of the model's {len(params)} parameters; "
                    f"their names are like {params[0]}"
                )


def parse_group(text: str) -> Group:
    """`MATCH:lr_scale=0.5,weight_decay=0`; raises GroupError with the part that is wrong."""
    match, found, rest = text.rpartition(":")
    if not (found and match and rest):
        raise GroupError(f"--group {text}: expected MATCH:lr_scale=0.5,weight_decay=0")
    numbers: dict[str, float] = {}
    for item in rest.split(","):
        key, _, value = item.partition("=")
        if key not in _KEYS or key in numbers:
            raise GroupError(f"--group {text}: {key!r}: give each of {', '.join(_KEYS)} once")
        numbers[key] = _number(text, key, value)
    return Group(match, **numbers)


def _number(text: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise GroupError(f"--group {text}: {key}={value}: give a number of at least 0")
    return number


def group_text(table: object) -> str:
    """A job file's [[run.groups]] table as `--group` has it; raises GroupError."""
    if isinstance(table, str):
        return table
    if not isinstance(table, dict) or not isinstance(table.get("match"), str):
        raise GroupError(f"groups: {table!r}: expected a table with match = 'layers.*.weight'")
    numbers = [f"{key}={value}" for key, value in table.items() if key != "match"]
    return f"{table['match']}:{','.join(numbers)}"
