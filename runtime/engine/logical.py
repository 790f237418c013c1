"""Where the local box of a sharded parameter lies in the logical tensor."""

import torch
from torch import Tensor

from . import mesh
from .layout import Param


def box_index(param: Param, place: dict[str, int], device: torch.device) -> tuple[Tensor, ...]:
    """Return per dim the logical indices, int64, in local order. place: coordinate by axis."""
    found = []
    for dim, size in enumerate(param.shape):
        index = torch.arange(size, device=device)
        for cut_dim, outer, axis in param.shards:
            if cut_dim == dim:
                index = index.view(outer, mesh.size(axis), -1)[:, place[axis]].reshape(-1)
        found.append(index)
    return tuple(found)


def take_box(whole: Tensor, param: Param, place: dict[str, int]) -> Tensor:
    """Return a contiguous copy of the box of a logical tensor that lies at a place."""
    for dim, index in enumerate(box_index(param, place, whole.device)):
        if index.numel() != param.shape[dim]:
            whole = whole.index_select(dim, index)
    return whole.contiguous()


def place_box(whole: Tensor, box: Tensor, param: Param, place: dict[str, int]) -> None:
    """Copy the box of a place into the logical matrix."""
    rows, columns = box_index(param, place, whole.device)
    whole[rows[:, None], columns[None, :]] = box
