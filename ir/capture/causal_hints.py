"""Leave masks of `nn.TransformerEncoder` and `nn.TransformerDecoder` as they are under export.

Without `is_causal` these compare the values of a mask with a causal one, which a graph has no way
for. The answer is a hint alone: the mask says the same where it is kept.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.nn.modules import transformer


@contextmanager
def no_causal_detection() -> Iterator[None]:
    """Take a mask for causal only where the caller says so.

    A mask that is trained is asked as torch asks: dropped for the hint, it has no gradient.
    """
    plain = transformer._detect_is_causal_mask

    def detect(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        if mask is not None and mask.requires_grad:
            return plain(mask, is_causal, size)
        return is_causal is True

    transformer._detect_is_causal_mask = detect
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = plain
