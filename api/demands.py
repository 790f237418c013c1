"""What a plan is asked for: a cluster, and a job on it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from meshwright.ir.dtypes import PLANNED
from meshwright.ir.errors import PlanError


@dataclass(frozen=True)
class Cluster:
    """Devices to plan for.

    name: of the catalogue with counts (`h200:8`, `h100:8x16`, `cpu:2`), a TOML file, or `auto`:
    this machine as `meshwright probe` measured it, else its GPUs, and four CPU ranks where there
    are none.
    gpu_memory, host_memory: of each device, and of a host for offloaded values, where they are not
    the part's own, such as "24GiB".
    """

    name: str = "auto"
    gpu_memory: str = ""
    host_memory: str = ""

    @property
    def spec(self) -> str:
        """Return the name with the memories that are given."""
        sizes = {"gpu_memory": self.gpu_memory, "host_memory": self.host_memory}
        return ",".join([self.name, *(f"{key}={size}" for key, size in sizes.items() if size)])


@dataclass(frozen=True)
class Job:
    """A step to plan, and what of the plan is fixed.

    seq: tokens of a row. global_batch: rows of an optimizer step. dtype: of parameters and compute,
    f32, bf16 or f64; "": bf16 on GPUs, f32 on CPU ranks. pins: decisions that are fixed, a mapping
    as {"tp": 2} or texts as "tp=2". freeze: parameters that are not trained, names or wildcards
    with commas between them. update_router_bias: train the biases by which routers choose, by how
    their choices fall. loss: a function or class, or its name, of logits [B, S, V] and labels
    [B, S], that gives their mean or sum over the labels that are not -100; "": the cross-entropy.
    search: False takes defaults for what is not pinned. effort:
    of the search: "fast" passes over what could gain less than 5%, "normal" 0.5%, "best" nothing.
    prove_full: prove the capture on the whole
    module whatever its size. trust_capture: do not prove it.
    """

    seq: int
    global_batch: int
    dtype: str = ""
    pins: Mapping[str, object] | Sequence[str] = ()
    freeze: str = ""
    update_router_bias: bool = False
    loss: object = ""
    search: bool = True
    effort: str = "normal"
    prove_full: bool = False
    trust_capture: bool = False

    @property
    def pin_texts(self) -> list[str]:
        """Return the pins as KEY=VALUE."""
        if isinstance(self.pins, Mapping):
            return [f"{key}={value}" for key, value in self.pins.items()]
        return list(self.pins)


def check_kinds(job: Job) -> None:
    """Raise PlanError for a value of another type than `Job` has."""
    for name in ("seq", "global_batch"):
        value = getattr(job, name)
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise PlanError(f"{name}={value!r}: give a whole number, as {name}=16")
    check_capturing(job.dtype or PLANNED[0], job.freeze)


def check_capturing(dtype: object, freeze: object) -> None:
    """Raise PlanError for a dtype that no capture has, and for patterns that are no text."""
    if dtype not in PLANNED:
        raise PlanError(f"dtype={dtype!r}: give {', '.join(PLANNED[:-1])} or {PLANNED[-1]}")
    if not isinstance(freeze, str):
        raise PlanError(
            f"freeze={freeze!r}: give one text of names or wildcards with commas between them, as "
            "'embed.*,head.*'"
        )


Say = Callable[[str], None]


def silent(_: str) -> None:
    """Say nothing of the progress."""


def cluster_of(given: "Cluster | str") -> Cluster:
    """Return a cluster that is given, or named."""
    return given if isinstance(given, Cluster) else Cluster(given)
