"""Stock image-text models of `transformers`: a row is tokens of text and one image of a fixed size.

Such a class makes features of the pixels, one for each token that stands for the image, and puts
them in the places of these tokens' embeddings. It does so for all rows at once, in the order in
which the tokens of the whole batch come: a batch that is cut has another order. Here each row takes
its own features, by the places that the step gives. Of a batch in which every row has its image's
tokens both are the same, which the proof of a capture checks on the class as it is.
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from .errors import ModelError, said_of
from .hf_masks import one_document_a_row

_CHECK = "torch_compilable_check"  # the library's assertion on values of tensors


class HuggingFaceImageText(nn.Module):
    """A stock image-text model behind a forward of tokens, images and places to logits.

    Parameters keep the library's names behind the prefix `hf.`. token: the id that stands for a
    part of an image, and in no other place of a row: text that has it there has id 0, or 1 where
    it is 0. image_shape: C, H, W. image_places: tokens of a row that stand for its image.
    plain: the class puts features in their places by itself.
    """

    def __init__(
        self, hf: nn.Module, token: int, image_shape: tuple[int, int, int], plain: bool = True
    ) -> None:
        super().__init__()
        self.hf, self.token, self.image_shape, self.plain = hf, token, image_shape, plain
        self.image_places = 1
        self.image_places = self._count()

    def forward(self, tokens: Tensor, images: Tensor, places: Tensor) -> Tensor:
        """tokens, int64 [B, S]; images [B, C, H, W]; places, int64 [B, N] -> logits [B, S, V]."""
        at = torch.arange(tokens.shape[1], device=tokens.device)
        hits = at[:, None] == places[:, None, :]
        given = self._given(tokens, images, hits.sum(-1) > 0)
        own = nullcontext() if self.plain else each_row_its_features(self.hf, hits)
        with one_document_a_row(), own:
            return self.hf(**given).logits

    def _given(self, tokens: Tensor, images: Tensor, stands: Tensor) -> dict[str, Any]:
        """What the class takes. stands: bool [B, S], whether a token is part of an image."""
        given: dict[str, Any] = {"pixel_values": images, "use_cache": False}
        text = tokens.masked_fill(tokens == self.token, int(self.token == 0))
        given["input_ids"] = text.masked_fill(stands, self.token)
        asked = inspect.signature(self.hf.forward).parameters
        kinds = (name for name in ("token_type_ids", "mm_token_type_ids") if name in asked)
        return given | dict.fromkeys(kinds, stands.to(torch.int64))

    def row_of_zeros(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what a forward takes, for one row of four tokens on meta tensors."""
        dtype = next(p.dtype for p in self.hf.parameters() if p.is_floating_point())
        shape, ids = (1, *self.image_shape), partial(torch.zeros, dtype=torch.int64, device="meta")
        images = torch.zeros(shape, dtype=dtype, device="meta")
        return ids(1, 4), images, ids(1, self.image_places)

    def _count(self) -> int:
        """Return how many features the class makes of an image."""
        named = (*self.hf.named_parameters(), *self.hf.named_buffers())
        meta = {name: value.detach().to("meta") for name, value in named}
        tokens, images, _ = self.row_of_zeros()
        given = self._given(tokens, images, tokens == 0)
        failed = ""
        with torch.no_grad(), each_row_its_features(self.hf, None) as counts:
            try:
                torch.func.functional_call(self.hf, meta, (), given)
            except Exception as error:
                failed = f": {said_of(error)}"
        if len(counts) != 1:
            raise ModelError(
                f"{type(self.hf).__name__} does not put the features of one image of "
                f"{list(self.image_shape)} in the places of a row's tokens{failed}"
            )
        return counts[0]


@contextmanager
def each_row_its_features(model: nn.Module, hits: Tensor | None) -> Iterator[list[int]]:
    """Let a class put features in their places row by row, and make one list of all rows.

    hits: bool [B, S, N], None to count features alone. For the time of a forward `masked_scatter`
    takes features by `hits`. In the files of the model's classes `list` leaves a tensor whole,
    which they concatenate again, and a check of values is none: whoever reads the data counts its
    places.
    Yields a list, in which each such call leaves the number of features of a row.
    """
    counts: list[int] = []

    def scatter(own: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        features = source.reshape(own.shape[0], -1, own.shape[-1])
        counts.append(features.shape[1])
        if hits is None:
            return own
        # A product with one 1 in each row is a choice that axes can cut.
        return torch.where(mask, hits.to(own.dtype) @ features.to(own.dtype), own)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Tensor, "masked_scatter", scatter))
        for name in {type(part).__module__ for part in model.modules()}:
            if name.startswith("transformers.models."):
                own = {"list": _listed, _CHECK: lambda *_: None}
                stack.enter_context(patch.dict(vars(sys.modules[name]), own))
        yield counts


class _Listed(type):
    """`list` where a tensor is one element."""

    def __call__(cls, *given: Any) -> list:
        whole = len(given) == 1 and isinstance(given[0], Tensor)
        return [given[0]] if whole else builtins.list(*given)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, builtins.list)


class _listed(list, metaclass=_Listed):  # it stands where `list` does
    pass


def image_shape(spec: str, config: Any) -> tuple[int, int, int]:
    """Return C, H, W of the images of a config. Raises ModelError where it states none."""
    vision = getattr(config, "vision_config", None)
    size = getattr(vision, "image_size", None)
    sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(sides) != 2 or not all(type(n) is int for n in sides):
        raise ModelError(
            f"{spec}: {config.model_type} takes images of any size: its vision_config has "
            f"image_size = {size!r}, where a plan takes one size for all rows"
        )
    return (getattr(vision, "num_channels", 3), *sides)


def image_token(spec: str, config: Any) -> int:
    """Return the id that stands for a part of an image. Raises ModelError where there is none."""
    names = ("image_token_id", "image_token_index")
    found = next((n for n in names if getattr(config, n, None) is not None), None)
    if found is None:
        raise ModelError(f"{spec}: {config.model_type} has no image_token_id in its config")
    return int(getattr(config, found))
