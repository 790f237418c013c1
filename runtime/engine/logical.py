"""Where the local box of a tp-sharded parameter lies in the logical tensor."""

import torch
from torch import Tensor

from . import mesh
from .layout import Param


def box_index(param: Param, tp: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return per dim the logical indices, int64, of rank `tp` of the tp axis, in local order."""
    found = []
    for dim, size in enumerate(param.shape):
        index = torch.arange(size, device=device)
        for cut_dim, outer, axis in param.shards:
            if cut_dim == dim:
                index = index.view(outer, mesh.size(axis), -1)[:, tp].reshape(-1)
        found.append(index)
    return tuple(found)


def take_box(whole: Tensor, param: Param, tp: int) -> Tensor:
    """A copy of rank `tp`'s box of a logical tensor, contiguous."""
    for dim, index in enumerate(box_index(param, tp, whole.device)):
        if index.numel() != param.shape[dim]:
            whole = whole.index_select(dim, index)
    return whole.contiguous()


def place_box(whole: Tensor, box: Tensor, param: Param, tp: int) -> None:
    """Copy rank `tp`'s box into its place in the logical matrix."""
    rows, columns = box_index(param, tp, whole.device)
    whole[rows[:, None], columns[None, :]] = box
