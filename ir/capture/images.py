"""What a module that reads an image in each row states of it."""

from inspect import signature

from torch import nn

from ..errors import CaptureError
from ..inputs import Role, role_of


def image_sizes(module: nn.Module, name: str) -> dict[Role | None, tuple[int, ...]]:
    """Return the sizes of a row of `images` and of `places`, of those that a module takes.

    Raises CaptureError for a module that does not state them, or takes places alone.
    """
    asked = {role_of(name) for name in signature(module.forward).parameters}
    shape, count = getattr(module, "image_shape", None), getattr(module, "image_places", None)
    if "images" in asked and not _whole(shape):
        raise CaptureError(
            f"model {name}: its forward takes images, and its image_shape is {shape!r}; state the "
            "sizes of an image on the module, as image_shape = (3, 336, 336)"
        )
    if "places" in asked and not ("images" in asked and _whole((count,))):
        raise CaptureError(
            f"model {name}: its forward takes places of images, and its image_places is {count!r}; "
            "take images, too, and state on the module how many tokens of a row stand for one, as "
            "image_places = 576"
        )
    stated: tuple[tuple[Role, tuple[int, ...]], ...] = (
        ("images", tuple(shape or ())),
        ("places", (count or 0,)),
    )
    return {role: sizes for role, sizes in stated if role in asked}


def _whole(sizes: object) -> bool:
    known = isinstance(sizes, tuple | list) and len(sizes) > 0
    return known and all(type(n) is int and n > 0 for n in sizes)  # type: ignore[attr-defined]
