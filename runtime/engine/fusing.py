"""What torch.compile makes one kernel of: settings of Inductor, and two choices that it makes anew.

Inductor writes a pointwise value to memory where more than four buffers, or thirty operations, lead
to it; a rotation's gradient has more. LIMITS lets those of a norm and a rotation be one kernel.

Pointwise text keeps the order that its operands have in memory: heads beside each other within a
token, say, where dims are [B, H, S, D]. Inductor makes such a value in the order of its dims where
it writes it, and copies it for each matmul or opaque op that reads a transposed view. `keep_order`
asks for it in its own order, in which it is read where it lies: the gradient of a rotation, read
by both matmuls of a linear layer's backward, is one kernel for three.

A sum over a row keeps the row in registers up to 1,024 columns, and reads it twice above. It is
kept up to LONGEST_ROW here: norms of 3,072, 1,600 and 1,152 columns took 150, 111 and 144 us and
take 111, 76 and 115 (benchmarks/README.md, H200, 2026-11-29).

Private to torch (2.11 to 2.13): `prims.inductor_force_stride_order` of inductor_prims.py and
InductorChoices of choices.py, both of torch/_inductor. tests/runtime/test_fusing.py shows what they
are relied on for.
"""

from functools import cache, wraps
from typing import Any

import torch
from torch.fx import Graph, Node

from .kernels.opaque import HOME

LIMITS = {"realize_reads_threshold": 16, "realize_opcount_threshold": 200}
LONGEST_ROW = 4096
_MATMULS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


def keep_order(graph: Graph) -> None:
    """Ask for each pointwise value in the order that its strides have, where a matmul or an opaque
    op reads a view of it."""
    for node in list(graph.nodes):
        if _is_pointwise(node) and _is_reordered(node) and _is_read_apart(node):
            strides = list(node.meta["val"].stride())
            asked = torch.ops.prims.inductor_force_stride_order.default
            with graph.inserting_after(node):
                kept = graph.call_function(asked, (node, strides))
            kept.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(kept, lambda user, kept=kept: user is not kept)


def _is_pointwise(node: Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _is_reordered(node: Node) -> bool:
    """Return whether a value fills its memory in another order than that of its dims."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return False
    strides = value.stride()
    order = sorted(range(value.dim()), key=lambda dim: strides[dim], reverse=True)
    return value.permute(order).is_contiguous()


def _is_read_apart(node: Node) -> bool:
    """Return whether a matmul or an opaque op reads a view of a value."""
    views = list(filter(_is_view, node.users))
    while views:
        users = list(views.pop().users)
        if any(map(_is_apart, users)):
            return True
        views += filter(_is_view, users)
    return False


def _is_view(node: Node) -> bool:
    return getattr(node.target, "is_view", False)


def _is_apart(node: Node) -> bool:
    overload = node.target
    return overload in _MATMULS or getattr(overload, "namespace", "") == HOME


@cache
def keep_rows() -> None:
    """Let the kernels of this process keep rows of up to LONGEST_ROW columns in registers."""
    from torch._inductor.choices import InductorChoices
    from torch._inductor.runtime.hints import ReductionHint

    chosen = InductorChoices.should_use_persistent_reduction

    @wraps(chosen)
    def keeps(features: Any, cooperative_reduction: bool) -> bool:
        rows = features.get_reduction_hint() == ReductionHint.INNER and not cooperative_reduction
        size = features.reduction_numel
        short = rows and size.is_Integer and int(size) <= LONGEST_ROW
        return short or chosen(features, cooperative_reduction)

    InductorChoices.should_use_persistent_reduction = staticmethod(keeps)  # type: ignore[method-assign]
