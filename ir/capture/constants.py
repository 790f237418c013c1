"""Tensors that travel in a plan, named by what they hold."""

import base64
import hashlib

import torch
from torch import Tensor

from ..graph import Constant
from .fx import short_dtype


def _raw_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def digest_of(tensor: Tensor) -> str:
    head = f"{short_dtype(tensor.dtype)}{list(tensor.shape)}".encode()
    return hashlib.sha256(head + _raw_bytes(tensor)).hexdigest()[:16]


def encode(digest: str, tensor: Tensor) -> Constant:
    data = base64.b64encode(_raw_bytes(tensor)).decode()
    return digest, short_dtype(tensor.dtype), tuple(tensor.shape), data
