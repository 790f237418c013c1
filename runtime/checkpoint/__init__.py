"""Checkpoints that any plan resumes: boxes of logical tensors in safetensors, state in JSON."""

from .load import Loaded, check_params, lacking, load, load_weights
from .manifest import CheckpointError, Manifest, State, newest_good, none_reads, read_manifest
from .store import Checkpointer
from .weights import weights_identity

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "Manifest",
    "State",
    "Loaded",
    "check_params",
    "lacking",
    "load",
    "load_weights",
    "newest_good",
    "none_reads",
    "read_manifest",
    "weights_identity",
]
