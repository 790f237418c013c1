"""What is held in more than the plan's dtype, and how updates round.

Under bf16 an update is often smaller than half the distance to the next weight, and nearest
rounding loses it; so masters in float32 are the default, and weights without them ask how to round.
"""

from meshwright.ir.dtypes import HALVES
from meshwright.ir.errors import PlanError
from meshwright.ir.plan import grad_dtype

from .pins import Pins


def resolve_precision(dtype: str, pins: Pins) -> str:
    """Return `master` under bf16 and `pure` under others, unless pinned.

    Raises PlanError for masters of a dtype that needs none.
    """
    if pins.precision == "master" and dtype not in HALVES:
        raise PlanError(f"precision=master needs dtype bf16, the plan's is {dtype}")
    return pins.precision or ("master" if dtype in HALVES else "pure")


def resolve_rounding(dtype: str, pins: Pins) -> str:
    """Return how updates round: `nearest` or `stochastic` where weights are bf16 alone, else "".

    Raises PlanError where it must be said and is not, and where nothing rounds.
    """
    precision = resolve_precision(dtype, pins)
    if dtype in HALVES and precision == "pure":
        if pins.rounding is None:
            raise PlanError(
                f"precision=pure under {dtype} needs to know how updates round: --pin "
                "rounding=stochastic keeps small ones on average, rounding=nearest loses those "
                "below half a step of a weight; or leave precision=pure out for float32 masters"
            )
        return pins.rounding
    if pins.rounding is not None:
        kept = f"precision={precision} under {dtype} updates weights in"
        wide = "float32" if dtype in HALVES else dtype
        raise PlanError(f"rounding={pins.rounding}: {kept} {wide}; leave the pin out")
    return ""


def resolve_reduce_dtype(dtype: str, pins: Pins, num_microbatches: int = 1) -> str:
    """Return the dtype of gradients as a rank sums them, unless pinned. Float64 keeps all its
    digits."""
    if pins.reduce_dtype is not None and dtype == "f64":
        raise PlanError(
            f"reduce_dtype={pins.reduce_dtype} with dtype f64: a program in f64 reduces its "
            "gradients in f64; leave the pin out, or plan with --dtype f32 or bf16"
        )
    summed = grad_dtype(dtype, resolve_precision(dtype, pins), num_microbatches)
    return pins.reduce_dtype or summed
