"""Image-text classes that read more than pixels [B, C, H, W]: as the library trains them."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from equivalence.boxes import assemble
from equivalence.oracle import Widened
from equivalence.pool import Pool
from equivalence.test_images import IMAGE, ROWS, SEQ, STEPS, next_ids
from equivalence.test_pairs import RATE, same, with_values_of
from equivalence.worker import Job
from torch import Tensor

from meshwright.api.programs import write_program
from meshwright.ir.capture.export import trace
from meshwright.ir.capture.initialisers import default_dtype
from meshwright.ir.plan import Plan
from meshwright.models import load_model
from meshwright.models.errors import ModelError
from meshwright.models.hf_layout import layout_of
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.runtime.optimizers.options import OptimizerOptions

SIZE, PLACES = 24, 9
_TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
}  # fmt: skip
_VISION = {
    "depth": 2, "num_heads": 2, "hidden_size": 32, "intermediate_size": 48, "patch_size": 4,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 32, "image_size": SIZE,
}  # fmt: skip
_IDS = {"image_token_id": IMAGE, "video_token_id": 62, "vision_start_token_id": 61}
# What each has of its own: windows of patches; features that text layers add, and a table of
# positions between whose rows it interpolates; tokens of an image that see each other.
CONFIGS: dict[str, Any] = {
    "windows": transformers.Qwen2_5_VLConfig(
        text_config=_TEXT,
        vision_config=_VISION | {"window_size": 16, "fullatt_block_indexes": [1]},
        **_IDS,
    ),
    "added": transformers.Qwen3VLConfig(
        text_config=_TEXT,
        vision_config=_VISION | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        **_IDS,
    ),
    "blocks": transformers.Gemma3Config(
        text_config={key: _TEXT[key] for key in _TEXT if key != "rope_parameters"}
        | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        vision_config=_VISION
        | {"model_type": "siglip_vision_model", "num_hidden_layers": 2, "num_attention_heads": 2},
        image_token_id=IMAGE,
        mm_tokens_per_image=PLACES,
    ),
}
PLANS = {"windows": {"pp": 2}, "added": {"tp": 2, "shard_weights": True}, "blocks": {"cp": 2}}
_ONE_STEP = OptimizerOptions(name="sgd", momentum=0.0, weight_decay=0.0, clip=0.0)


@pytest.mark.long
@pytest.mark.parametrize("kind", CONFIGS)
def test_it_equals_the_own_training_of_the_library(kind: str, pool: Pool, tmp_path: Path) -> None:
    """Loss, gradients and updated parameters, of rows whose image begins anywhere."""
    config = CONFIGS[kind]
    made = _plan(config, tmp_path / "stock", PLANS[kind])
    write_program(made, tmp_path / "p")
    data = [_rows(step) for step in range(STEPS)]
    steps = [(ids.numpy(), next_ids(ids).numpy(), RATE) for ids, _, _ in data]
    job = Job(tmp_path / "p", made.mesh.num_devices, steps, 0, asdict(_ONE_STEP), False, 60.0)
    others = tuple({"images": x.numpy(), "places": p.numpy()} for _, x, p in data)
    ranks = pool.run(replace(job, others=others))
    losses, grads, params = _by_the_library(config, made, data)
    torch.testing.assert_close(ranks[0].losses, losses, rtol=1e-11, atol=0)
    same(assemble(made, ranks, lambda rank: rank.grads, trained=True), grads)
    same(assemble(made, ranks, lambda rank: rank.params), params)


def _plan(config: Any, folder: Path, pins: dict) -> Plan:
    config.save_pretrained(folder)
    traced = trace(load_model(f"hf-images:{folder}").build, "stock", "f64", 64)
    given = Pins(**{"micro_batch": 1} | pins)
    return make_plan(traced, parse_cluster("cpu:2"), seq=SEQ, global_batch=ROWS, pins=given)


def _rows(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids [ROWS, SEQ] with the image's own in its places, pixels, and places [ROWS, PLACES]."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 60, (ROWS, SEQ), generator=generator)
    places = torch.randint(0, SEQ - PLACES, (ROWS, 1), generator=generator) + torch.arange(PLACES)
    pixels = torch.randn(ROWS, 3, SIZE, SIZE, generator=generator).double()
    return ids.scatter(1, places, IMAGE), pixels, places


def _by_the_library(
    config: Any, plan: Plan, data: list[tuple[Tensor, Tensor, Tensor]]
) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    with default_dtype(torch.float64):
        model = transformers.AutoModelForImageTextToText.from_config(
            config, attn_implementation="eager"
        )
    params = with_values_of(plan, model.double().train())
    trained = params.keys() - set(plan.frozen)
    losses, grads = [], []
    for ids, pixels, _ in data:
        model.zero_grad()
        with default_dtype(torch.float64), Widened():
            logits = model(input_ids=ids, **_given(config, ids, pixels), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), next_ids(ids).flatten())
        loss.backward()
        losses.append(float(loss.detach()))
        grads.append({n: p.grad.clone() for n, p in params.items() if n in trained})
        with torch.no_grad():
            for name in trained:
                params[name].sub_(grads[-1][name], alpha=RATE)
    return losses, grads[0], {name: param.detach() for name, param in params.items()}


def _given(config: Any, ids: Tensor, pixels: Tensor) -> dict[str, Tensor]:
    """Pixels as the library's processor lays them out, and the kind of each token."""
    stands = (ids == IMAGE).long()
    if config.model_type == "gemma3":
        return {"pixel_values": pixels, "token_type_ids": stands}
    made = _processor()(list(pixels.numpy()), return_tensors="pt", input_data_format=_FIRST)
    patches = {"pixel_values": made["pixel_values"].double()}
    return patches | {"image_grid_thw": made["image_grid_thw"], "mm_token_type_ids": stands}


_FIRST = "channels_first"


def _processor() -> Any:
    steps = dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"), False)
    kind = transformers.Qwen2VLImageProcessorPil
    return kind(patch_size=4, temporal_patch_size=2, merge_size=2, **steps)


def test_pixels_are_laid_out_as_by_the_processor_of_the_class() -> None:
    pixels = torch.from_numpy(np.arange(2.0 * 3 * SIZE * SIZE).reshape(2, 3, SIZE, SIZE))
    layout = layout_of("hf-images:x", CONFIGS["windows"], (3, SIZE, SIZE))
    made = _processor()(list(pixels.numpy()), return_tensors="pt", input_data_format=_FIRST)
    assert torch.equal(layout.pixels(pixels), made["pixel_values"].double())
    assert torch.equal(layout.others["image_grid_thw"], made["image_grid_thw"][:1])


def test_a_size_that_is_no_number_of_patches_is_refused() -> None:
    with pytest.raises(ModelError, match="which lays its images out, fails"):
        layout_of("hf-images:x", CONFIGS["windows"], (3, SIZE + 2, SIZE))
