"""`needs.json`: what the machines that run a program must have, for runtime/launch/readiness.py."""

import json
import math

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.plan import Param, Plan
from meshwright.ir.sizes import evaluate


def needs_source(plan: Plan) -> str:
    """Return the text of `needs.json`. Sizes are in bytes: of the ranks with the most of each, and
    of all parameters as the optimizer updates them."""
    predicted, frozen = dict(plan.costs), set(plan.frozen)
    needs = {
        "device_type": plan.device_type,
        "device_name": plan.device_name,
        "devices_per_node": plan.devices_per_node,
        "ranks": plan.mesh.num_devices,
        "stages": plan.num_stages,
        "rank_bytes": round(predicted.get("predicted_peak_bytes", 0)),
        "offloaded_bytes": round(predicted.get("predicted_host_bytes", 0)),
        "trained_bytes": sum(_updated_bytes(p, plan) for p in plan.params if p.name not in frozen),
        "frozen_bytes": sum(_bytes(p) for p in plan.params if p.name in frozen),
        "optimizer": plan.optimizer,
    }
    return json.dumps(needs, indent=1) + "\n"


def _bytes(param: Param) -> int:
    return math.prod(evaluate(size, {}) for size in param.shape) * ITEM_BYTES[param.dtype]


def _updated_bytes(param: Param, plan: Plan) -> int:
    """Return the bytes of a parameter as the optimizer updates it: of its master, if any."""
    own, master = ITEM_BYTES[param.dtype], ITEM_BYTES[plan.grad_dtype]
    return _bytes(param) // own * max(own, master)
