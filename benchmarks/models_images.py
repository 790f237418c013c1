"""A tiny config of any image-text model of `transformers`, its images, and what its class is given.

The sizes of its parts follow the rule of models_tiny.py; those of images are here. A row is text
and the tokens of one image, one behind the other, as the library's own processors write them.
"""

import inspect
from typing import Any

import torch
import transformers
from models_tiny import OWN, VOCAB, WIDTH, given_fields
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

PREFIX = "images:"  # of the name of a model type that is checked with its images
IMAGE, SIZE, PATCH = VOCAB - 1, 8, 4
_FIRST_SPECIAL = VOCAB - 16  # ids from here stand for no text

# Fields of images, in a config or in those within it.
_SIZES = {"image_size": SIZE, "patch_size": PATCH, "depth": 2, "out_hidden_size": WIDTH}
_TOKENS = ("image_token_id", "image_token_index")
# What the rules do not give: by model type, in the words of OWN.
_LARGER = {"vision_config": {"image_size": 4 * PATCH}}  # of classes that merge patches
_GEMMA3 = _LARGER | {"mm_tokens_per_image": 4}
_WINDOWS = {
    "vision_config": {
        "image_size": 6 * PATCH,
        "window_size": 4 * PATCH,
        "fullatt_block_indexes": [1],
    }
}
_QUERIES = {"num_query_tokens": 4}
_OWN: dict[str, dict[str, Any]] = {
    "aria": {"projector_patch_to_query_dict": {4: 3}},
    "blip-2": _QUERIES,
    "exaone4_5": _WINDOWS,
    "hyperclovax_vision_v2": _WINDOWS,
    "paligemma": {"projection_dim": WIDTH},
    "qwen2_5_omni_thinker": _WINDOWS,
    "qwen2_5_vl": _WINDOWS,
    "aya_vision": _LARGER,
    "cohere2_vision": _LARGER,
    "gemma3": _GEMMA3,
    "glm46v": _LARGER,
    "glm4v": _LARGER,
    "glm4v_moe": _LARGER,
    "glm_ocr": _LARGER,
    "glmga": _LARGER,
    "granite_docling": {"vision_config": {"image_size": 8 * PATCH}},
    "idefics3": _LARGER,
    "internvl": _LARGER,
    "llama4": {
        "vision_config": {
            "image_size": 4 * PATCH,
            "intermediate_size": 4 * WIDTH,
            "projector_input_dim": WIDTH,
            "projector_output_dim": WIDTH,
            "vision_output_dim": WIDTH,
        }
    },  # fmt: skip
    "vipllava": {"vision_feature_layer": [-1, -2]},
    "mistral3": _LARGER,
    "paddleocr_vl": _LARGER,
    "qianfan_ocr": {"vision_config": {"image_size": [16, 16]}},
    "shieldgemma2": _GEMMA3,
    "smolvlm": _LARGER,
}


def image_types() -> list[str]:
    """All model types that read images beside text, with the prefix of their names."""
    return sorted(f"{PREFIX}{name}" for name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)


def tiny_image_config(name: str) -> Any:
    """The tiny config of a model type without its prefix.

    Raises whatever the library raises where it refuses the sizes.
    """
    kind = CONFIG_MAPPING[name]
    fields = kind().to_dict()
    given = _with_images(fields, given_fields(fields))
    config = kind(**merged(given, _OWN.get(name, {})))
    _number_tokens(config)
    _cut_axes(config.get_text_config(decoder=True))
    vision = getattr(config, "vision_config", None)
    if vision is not None and getattr(vision, "image_size", None) is None:
        vision.image_size = 4 * PATCH  # of classes that take any size
    return config


def merged(fields: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return fields with those of `own`, config by config."""
    found = dict(fields)
    for key, value in own.items():
        inner = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if inner else value
    return found


def _with_images(fields: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The fields that are given, the sizes of images among them."""
    found = given | {k: _sized(v, _SIZES[k]) for k, v in fields.items() if k in _SIZES and v}
    inner = {k: v for k, v in given.items() if isinstance(v, dict) and v.get("model_type")}
    own = {k: _with_images(v, v) | OWN.get(v["model_type"], {}) for k, v in inner.items()}
    return found | own


def _sized(value: Any, size: int) -> Any:
    return [size] * len(value) if isinstance(value, list) else size


def _cut_axes(text: Any) -> None:
    """Let the axes of positions share the small number of angles."""
    rope = getattr(text, "rope_parameters", None) or {}
    if "rope_type" in rope:
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        angles = int(size * rope.get("partial_rotary_factor", 1.0)) // 2
        share = angles // 3
        rope["mrope_section"] = [angles - 2 * share, share, share]


def _number_tokens(config: Any) -> None:
    """Give each kind of token of an image or a video an id of its own within the vocabulary."""
    names = [key for key in config.to_dict() if key.endswith(("_token_id", "_token_index"))]
    kept = ("bos", "eos", "pad", "decoder_start", "sep", "unk", "cls", "mask")
    media = [key for key in sorted(names) if not key.startswith(kept) and key not in _TOKENS]
    for at, key in enumerate(media):
        setattr(config, key, IMAGE - 1 - at)
    for key in set(names) & set(_TOKENS):
        setattr(config, key, IMAGE)


def image_rows(
    ids: Tensor, labels: Tensor, shape: tuple[int, ...], count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return ids and labels [B, S] with an image in each row, and its pixels and places."""
    rows, seq = ids.shape
    first = torch.randint(0, seq - count + 1, (rows, 1), generator=generator)
    places = first + torch.arange(count)
    pixels = torch.randn(rows, *shape, generator=generator).double()  # a processor's are float32
    ids = (ids % _FIRST_SPECIAL).scatter(1, places, IMAGE)
    return ids, labels % _FIRST_SPECIAL, {"images": pixels, "places": places}


def given_to(model: nn.Module, ids: Tensor, others: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a stock class is given for rows with an image each."""
    asked = inspect.signature(model.forward).parameters
    kinds = (name for name in ("token_type_ids", "mm_token_type_ids") if name in asked)
    given = {"input_ids": ids} | dict.fromkeys(kinds, (ids == IMAGE).long())
    if "image_grid_thw" not in asked:
        return given | {"pixel_values": others["images"]}
    made = processed(model.config, list(others["images"].numpy()))
    return given | {name: x for name, x in made.items() if name in asked}


def processed(config: Any, images: list[Any]) -> dict[str, Tensor]:
    """What the library's own processor makes of images [C, H, W] of the size that a tower reads."""
    kind = _processor_of(config.model_type)
    steps = ("resize", "rescale", "normalize", "convert_rgb", "pad", "center_crop")
    names = {"patch_size": "patch_size", "temporal_patch_size": "temporal_patch_size",
             "spatial_merge_size": "merge_size"}  # fmt: skip
    vision = config.vision_config
    sizes = {own: getattr(vision, name) for name, own in names.items() if hasattr(vision, name)}
    made = kind(**dict.fromkeys((f"do_{step}" for step in steps), False), **sizes)(
        images, return_tensors="pt", input_data_format="channels_first"
    )
    return {key: x.double() if x.is_floating_point() else x for key, x in made.items()}


def _processor_of(name: str) -> Any:
    """The image processor of a model type, or of one whose processor of text and images it has."""
    kinds = IMAGE_PROCESSOR_MAPPING_NAMES.get(name)
    own = PROCESSOR_MAPPING_NAMES.get(name)
    alike = [n for n, other in PROCESSOR_MAPPING_NAMES.items() if other == own]
    named = kinds or next(filter(None, map(IMAGE_PROCESSOR_MAPPING_NAMES.get, alike)))
    return getattr(transformers, named["pil"])
