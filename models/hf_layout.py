"""How the own image processor of a `transformers` class lays out an image of a plan's size.

Some classes take no pixels [B, C, H, W], but patches of them in an order of their own, with the
number of these. The processor says both: it is given an image in which each pixel is its own
number, and what it returns is the order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .errors import ModelError, said_of
from .hf_extra import transformers_for
from .hf_packed import with_values

_PIXELS = "pixel_values"
# What would change pixels: an image comes as the class's vision tower is to read it.
_STEPS = ("resize", "rescale", "normalize", "center_crop", "pad", "convert_rgb", "image_splitting")
_GIVEN = {"return_tensors": "pt", "input_data_format": "channels_first"}
_SIZES = ("patch_size", "temporal_patch_size", "spatial_merge_size")


@dataclass(frozen=True)
class Layout:
    """steps: sizes and strides by which one image's pixels follow each other, outer ones first, and
    shape, in which they are given; of an image as it is there are none. others: by name, what else
    the class is told of one image."""

    steps: tuple[tuple[int, int], ...] = ()
    shape: tuple[int, ...] = ()
    others: dict[str, Tensor] = field(default_factory=dict)

    def pixels(self, images: Tensor) -> Tensor:
        """images [B, C, H, W] -> the pixels of all of them, as the class takes them."""
        if not self.shape:
            return images
        rows, kept = images.shape[0], [step for step in self.steps if step[1]]
        sorted_ = sorted(kept, key=lambda step: -step[1])
        found = images.reshape(rows, *(size for size, _ in sorted_))
        found = found.permute(0, *(1 + sorted_.index(step) for step in kept))
        for dim, (_, stride) in enumerate(self.steps):
            found = found if stride else found.unsqueeze(1 + dim)
        found = found.expand(rows, *(size for size, _ in self.steps))
        parts, *sizes = self.shape
        return found.reshape(rows * parts, *sizes)


def _steps(order: Tensor) -> tuple[tuple[int, int], ...]:
    """Sizes and strides of an order of pixels. Raises ValueError where it is not made of such."""
    found: list[tuple[int, int]] = []
    while len(order) > 1:
        stride = int(order[1] - order[0])
        ends = (order.diff() != stride).nonzero().flatten().tolist()
        size = ends[0] + 1 if ends else len(order)
        each = order.reshape(-1, size)
        if bool((each != each[:, :1] + stride * torch.arange(size)).any()):
            raise ValueError(f"pixels do not follow each other by steps of {stride}")
        found, order = [(size, stride), *found], each[:, 0]
    below = 1
    for size, stride in sorted((step for step in found if step[1]), key=lambda step: step[1]):
        if stride != below:
            raise ValueError(f"pixels follow each other by steps of {stride}, none of {below}")
        below *= size
    return tuple(found)


def layout_of(spec: str, config: Any, shape: tuple[int, int, int]) -> Layout:
    """Return the layout of images C, H, W by the image processor of a config's class.

    Raises ModelError where the library has none, or where it does not run.
    """
    kind = next(_processors(spec, config), None)
    if kind is None:
        raise ModelError(f"{spec}: transformers names no image processor of {config.model_type}")
    try:
        with with_values():
            numbers = torch.arange(math.prod(shape)).double().reshape(shape)
            found = kind(**_settings(config))(numbers.numpy(), **_GIVEN)
            order = found.pop(_PIXELS).long()
            steps = _steps(order.flatten())
    except Exception as error:
        raise ModelError(
            f"{spec}: {kind.__name__}, which lays its images out, fails: {said_of(error)}"
        ) from error
    if math.prod(size for size, stride in steps if stride) != math.prod(shape):
        raise ModelError(f"{spec}: {kind.__name__} does not keep the pixels of {list(shape)}")
    others = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    return Layout(steps, tuple(order.shape), others)


def _processors(spec: str, config: Any) -> Iterator[Any]:
    """Yield image processors of a model type, and of others that share its processor of text."""
    auto = transformers_for(spec).models.auto
    known = auto.image_processing_auto.IMAGE_PROCESSOR_MAPPING
    shared = auto.processing_auto.PROCESSOR_MAPPING_NAMES
    own = shared.get(config.model_type)
    alike = [name for name, processor in shared.items() if own is not None and processor == own]
    for name in (config.model_type, *alike):
        kinds = known.get(auto.configuration_auto.CONFIG_MAPPING[name], None) or {}
        yield from filter(None, (kinds.get("pil"),))


def _settings(config: Any) -> dict[str, Any]:
    stated = {name: getattr(config.vision_config, name, None) for name in _SIZES}
    named = {name.removeprefix("spatial_"): size for name, size in stated.items()}
    steps = {f"do_{step}": False for step in _STEPS}
    return steps | {name: size for name, size in named.items() if size is not None}
