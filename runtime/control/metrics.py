"""A live run's numbers as Prometheus reads them; the package prometheus_client makes the text."""

from collections.abc import Mapping
from typing import Any

_GAUGES = {
    "step": "steps done",
    "steps": "steps of the whole run",
    "loss": "loss of the last step, of the global batch",
    "eval_loss": "last held-out loss",
    "lr": "learning rate of the last step",
    "grad_norm": "norm of the gradient before clipping",
    "step_ms": "milliseconds of the last step",
    "predicted_step_ms": "milliseconds of a step as the plan predicts them",
    "tokens_per_s": "tokens a second of the last step",
    "tokens_seen": "tokens of all steps so far",
    "mfu": "share of the peak rate of all devices",
    "peak_memory_bytes": "most memory of rank 0's device",
}
MISSING = "# prometheus_client is not installed on the machine of rank 0: pip install it there\n"


def metrics_text(status: Mapping[str, Any]) -> str:
    """Return a status in the text format of Prometheus."""
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest
    except ImportError:
        return MISSING
    registry = CollectorRegistry()
    labels = {"run": str(status.get("run", "")), "model": str(status.get("model", ""))}
    for name, text in _GAUGES.items():
        value = status.get(name)
        if isinstance(value, int | float):
            gauge = Gauge(f"meshwright_{name}", text, list(labels), registry=registry)
            gauge.labels(**labels).set(value)
    return generate_latest(registry).decode()
