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
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from .errors import ModelError, said_of
from .hf_kernels import kernels_of
from .hf_layout import Layout, layout_of
from .hf_masks import one_document_a_row
from .hf_packed import Known, one_grid, positions_of, rope_of, rows_of
from .hf_routers import called, router_factor
from .recurrence import RecurrenceCore
from .router_load import RouterLoad

_DEEPER = "_deepstack_process"  # the library's adding of features in the places of an image
_SKIP = "transformers.masking_utils._ignore_bidirectional_mask_sdpa"
_CHECK = "torch_compilable_check"  # the library's assertion on values of tensors


class HuggingFaceImageText(nn.Module):
    """A stock image-text model behind a forward of tokens, images and places to logits.

    Parameters keep the library's names behind the prefix `hf.`. token: the id that stands for a
    part of an image, and in no other place of a row: text that has it there has id 0, or 1 where
    it is 0. image_shape: C, H, W. image_places: tokens of a row that stand for its image.
    plain: the class puts features in their places, and calls the kernels of its file, by itself.
    """

    def __init__(
        self,
        hf: nn.Module,
        token: int,
        image_shape: tuple[int, int, int],
        layout: Layout,
        plain: bool = True,
    ) -> None:
        super().__init__()
        self.hf, self.token, self.image_shape, self.plain = hf, token, image_shape, plain
        self.layout, self.image_places = layout, 1
        self.image_places = self._count()
        self.recurrence = None if plain else RecurrenceCore()
        self.router_load = None if plain else RouterLoad()
        self.router_factor = router_factor(hf)

    def forward(self, tokens: Tensor, images: Tensor, places: Tensor) -> Tensor | dict[str, Tensor]:
        """tokens, int64 [B, S]; images [B, C, H, W]; places, int64 [B, N] -> logits [B, S, V];
        with the load or the loss of its routers where the class makes a loss of them."""
        at = torch.arange(tokens.shape[1], device=tokens.device)
        hits = at[:, None] == places[:, None, :]
        given = self._given(tokens, images, hits.sum(-1) > 0, self.plain)
        if self.recurrence is None:
            return self._logits(given)
        if self.image_adjoins:
            axes, behind = positions_of(self.hf, self.token, self.image_places, self.layout.others)
            given["position_ids"] = rows_of(axes.to(hits.device), behind, hits, places)
        with each_row_its_features(self.hf, hits), kernels_of(self.hf, self.recurrence):
            return self._logits(given)

    def _logits(self, given: dict[str, Any]) -> Tensor | dict[str, Tensor]:
        with one_document_a_row():
            return called(self.hf, self.router_load, given, self.router_factor)

    @property
    def image_adjoins(self) -> bool:
        """Return whether the tokens of an image must stand one behind the other: a class that
        counts positions of several axes finds an image by its first token."""
        return bool(self.layout.others) and rope_of(self.hf) is not None

    def _given(self, tokens: Tensor, images: Tensor, stands: Tensor, plain: bool) -> dict[str, Any]:
        """What the class takes, or what it takes in our hands. stands: bool [B, S], whether a
        token is part of an image."""
        given: dict[str, Any] = {"pixel_values": self.layout.pixels(images)}
        text = tokens.masked_fill(tokens == self.token, int(self.token == 0))
        given["input_ids"] = text.masked_fill(stands, self.token)
        asked = inspect.signature(self.hf.forward).parameters
        kinds = (name for name in ("token_type_ids", "mm_token_type_ids") if name in asked)
        given |= dict.fromkeys(kinds, stands.to(torch.int64))
        said = {name: x for name, x in self.layout.others.items() if name in asked}
        of_rows = _repeated if plain else Known.of
        return given | {name: of_rows(x, images) for name, x in said.items()}

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
        given = self._given(tokens, images, tokens == 0, plain=False)
        failed = ""
        unasked = patch(_SKIP, lambda *_, **__: False)  # of values, which decide no number
        with torch.no_grad(), unasked, each_row_its_features(self.hf, None) as counts:
            try:
                torch.func.functional_call(self.hf, meta, (), {**given, "use_cache": False})
            except Exception as error:
                failed = f": {said_of(error)}"
        if len(counts) != 1:
            raise ModelError(
                f"{type(self.hf).__name__} does not put the features of one image of "
                f"{list(self.image_shape)} in the places of a row's tokens{failed}"
            )
        return counts[0]


def _repeated(value: Tensor, images: Tensor) -> Tensor:
    return value.to(images.device).repeat(images.shape[0], *[1] * (value.ndim - 1))


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
        return torch.where(mask, in_places(own, features), own)

    def added(own: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        features = source.reshape(own.shape[0], -1, own.shape[-1])
        return torch.where(mask.unsqueeze(-1), own + in_places(own, features), own)

    def in_places(own: Tensor, features: Tensor) -> Tensor:
        """A product with at most one 1 in each row: a choice that axes can cut."""
        return own if hits is None else hits.to(own.dtype) @ features.to(own.dtype)

    with one_grid(model, 1 if hits is None else hits.shape[0]), ExitStack() as stack:
        stack.enter_context(patch.object(Tensor, "masked_scatter", scatter))
        for part in model.modules():
            if hasattr(part, _DEEPER):
                stack.enter_context(patch.object(part, _DEEPER, added))
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


def image_text(spec: str, config: Any, model: nn.Module, plain: bool) -> HuggingFaceImageText:
    """Return a stock class behind our forward. Raises ModelError where it reads no images that a
    plan can give."""
    token, shape = image_token(spec, config), image_shape(spec, config)
    patched = "image_grid_thw" in inspect.signature(model.forward).parameters
    layout = layout_of(spec, config, shape) if patched else Layout()
    return HuggingFaceImageText(model, token, shape, layout, plain)


def check_images(spec: str, config: Any) -> None:
    """Raise ModelError where a config states no size of an image, or no token for it."""
    image_token(spec, config)
    image_shape(spec, config)


def image_shape(spec: str, config: Any) -> tuple[int, int, int]:
    """Return C, H, W of the images of a config. Raises ModelError where it states none."""
    vision = getattr(config, "vision_config", None)
    size = getattr(vision, "image_size", None)
    sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(sides) != 2 or not all(type(n) is int for n in sides):
        raise ModelError(
            f"{spec}: {config.model_type} takes images of any size: its vision_config has "
            f"image_size = {size!r}, where a plan takes one size for all rows; state it there"
        )
    channels = getattr(vision, "num_channels", getattr(vision, "in_channels", 3))
    return (channels, *sides)


def image_token(spec: str, config: Any) -> int:
    """Return the id that stands for a part of an image. Raises ModelError where there is none."""
    names = ("image_token_id", "image_token_index")
    found = next((n for n in names if getattr(config, n, None) is not None), None)
    if found is None:
        raise ModelError(f"{spec}: {config.model_type} has no image_token_id in its config")
    return int(getattr(config, found))
