"""The loss of routers of an image-text class is part of what its captured program computes."""

import inspect
from pathlib import Path

import pytest
import transformers

from meshwright.ir.capture.export import trace
from meshwright.ir.errors import ProofError
from meshwright.ir.traced import Traced
from meshwright.models import ModelSource, load_model
from meshwright.proof.prove import Subject, prove

IMAGE, FACTOR = 63, 0.5
_FORWARD = inspect.signature(transformers.Qwen3VLMoeForConditionalGeneration.forward)
pytestmark = pytest.mark.skipif(
    "output_router_logits" not in _FORWARD.parameters,
    reason="this transformers asks no config whether routers have a loss",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return load_model(f"hf-images:{_saved(tmp_path_factory.mktemp('own'), FACTOR)}")


@pytest.fixture(scope="module")
def traced(source: ModelSource) -> Traced:
    return trace(source.build, "qwen3_vl_moe", "f64", source.vocab_size)


def test_its_program_equals_the_loss_of_the_class(source: ModelSource, traced: Traced) -> None:
    assert traced.has_router_loss
    prove(_subject(source), traced)


def test_another_factor_is_no_proof(traced: Traced, tmp_path: Path) -> None:
    other = load_model(f"hf-images:{_saved(tmp_path, 1.5 * FACTOR)}")
    with pytest.raises(ProofError):
        prove(_subject(other), traced)


def _subject(source: ModelSource) -> Subject:
    assert source.plain
    return Subject("qwen3_vl_moe", source.plain, source.vocab_size, source.max_seq)


def _saved(folder: Path, factor: float) -> Path:
    """The folder with the config of a class of two layers and four experts."""
    config = transformers.Qwen3VLMoeConfig(
        text_config={
            "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 16, "output_router_logits": True,
            "router_aux_loss_coef": factor, "max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]
            },
        },
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
            "patch_size": 4, "out_hidden_size": 32, "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0], "image_size": 16,
        },
        image_token_id=IMAGE, video_token_id=62, vision_start_token_id=61, vision_end_token_id=60,
        architectures=["Qwen3VLMoeForConditionalGeneration"],
    )  # fmt: skip
    config.save_pretrained(folder)
    return folder
