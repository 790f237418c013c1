"""Stock image-text models: as the library trains them on images and labels, under every plan."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from equivalence.boxes import assemble
from equivalence.oracle import Widened
from equivalence.pool import Pool
from equivalence.test_pairs import RATE, same, with_values_of
from equivalence.worker import Job
from torch import Tensor, nn

import meshwright as mw
from meshwright.api.programs import write_program
from meshwright.ir.capture.export import trace
from meshwright.ir.capture.initialisers import default_dtype
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced
from meshwright.models import ModelSource, load_model
from meshwright.models.twins import twins
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.proof.prove import parameter_bytes
from meshwright.proof.twin import stands_for
from meshwright.runtime.optimizers.options import OptimizerOptions

VOCAB, IMAGE, PLACES, SEQ, ROWS, STEPS, IGNORED = 64, 63, 4, 12, 4, 2, -100
CONFIG = transformers.LlavaConfig(
    text_config={
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    vision_config={
        "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 8, "patch_size": 4,
    },
    image_token_id=IMAGE,
    architectures=["LlavaForConditionalGeneration"],
)  # fmt: skip
PLANS = {
    "dp": {"dp": 2, "micro_batch": 1, "zero": 2},
    "tp": {"tp": 2, "shard_weights": True},
    "pp": {"pp": 2, "micro_batch": 1},
    "cp": {"cp": 2, "recompute": "all"},
    "dp-tp": {"dp": 2, "tp": 2, "zero": 3, "micro_batch": 1},
    "tp-pp": {"tp": 2, "pp": 2, "micro_batch": 1},
}
FIRST = ("tp", "pp")  # the others are long
_ONE_STEP = OptimizerOptions(name="sgd", momentum=0.0, weight_decay=0.0, clip=0.0)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Traced]:
    folder = tmp_path_factory.mktemp("llava")
    CONFIG.save_pretrained(folder)
    source = load_model(f"hf-images:{folder}")
    return cache(lambda: trace(source.build, "llava", "f64", VOCAB))


@pytest.mark.parametrize(
    "plan", [pytest.param(p, marks=() if p in FIRST else pytest.mark.long) for p in PLANS]
)
def test_it_equals_the_own_training_of_the_library(
    traced: Callable[[], Traced], plan: str, pool: Pool, tmp_path: Path
) -> None:
    """Loss, gradients and updated parameters, of rows with an image anywhere."""
    made = _plan(traced(), PLANS[plan])
    write_program(made, tmp_path / "p")
    data = [_rows(step) for step in range(STEPS)]
    steps = [(ids.numpy(), next_ids(ids).numpy(), RATE) for ids, _, _ in data]
    others = tuple({"images": x.numpy(), "places": p.numpy()} for _, x, p in data)
    job = Job(tmp_path / "p", made.mesh.num_devices, steps, 0, asdict(_ONE_STEP), False, 60.0)
    ranks = pool.run(replace(job, others=others))
    losses, grads, params = _by_the_library(made, data)
    torch.testing.assert_close(ranks[0].losses, losses, rtol=1e-11, atol=0)
    same(assemble(made, ranks, lambda rank: rank.grads, trained=True), grads)
    same(assemble(made, ranks, lambda rank: rank.params), params)


def _plan(traced: Traced, pins: dict) -> Plan:
    words = {"micro_batch": 2} | pins
    ranks = 2 ** len(set(words) & {"dp", "tp", "pp", "cp"})
    cluster = parse_cluster(f"cpu:{ranks}")
    return make_plan(traced, cluster, seq=SEQ, global_batch=ROWS, pins=Pins(**words))


def _rows(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids [ROWS, SEQ] with the image's own in its places, pixels, and places [ROWS, PLACES]."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, IMAGE, (ROWS, SEQ), generator=generator)
    first = torch.randint(0, SEQ - PLACES, (ROWS, 1), generator=generator)
    places = first + torch.arange(PLACES)
    pixels = torch.randn(ROWS, 3, 8, 8, generator=generator, dtype=torch.float64)
    return ids.scatter(1, places, IMAGE), pixels, places


def next_ids(ids: Tensor) -> Tensor:
    """The label of each token: the next id, none where that is of an image or of no row."""
    labels = torch.cat([ids[:, 1:], torch.full((ROWS, 1), IGNORED)], 1)
    return labels.masked_fill(labels == IMAGE, IGNORED)


def _by_the_library(
    plan: Plan, data: list[tuple[Tensor, Tensor, Tensor]]
) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    with default_dtype(torch.float64):
        model = transformers.LlavaForConditionalGeneration._from_config(
            CONFIG, attn_implementation="eager"
        )
    params = with_values_of(plan, model.double().train())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses, grads = [], []
    for ids, pixels, _ in data:
        optimizer.zero_grad()
        labels = ids.masked_fill(ids == IMAGE, IGNORED)
        with Widened():
            loss = model(input_ids=ids, pixel_values=pixels, labels=labels).loss
        loss.backward()
        losses.append(float(loss.detach()))
        trained = {name: param for name, param in params.items() if param.requires_grad}
        grads.append({name: param.grad.clone() for name, param in trained.items()})
        optimizer.step()
    return losses, grads[0], {name: param.detach() for name, param in params.items()}


def test_a_dry_run_takes_images(traced: Callable[[], Traced], tmp_path: Path) -> None:
    write_program(_plan(traced(), {"cp": 2}), tmp_path / "p")
    mw.dry_run(tmp_path / "p")


class Beside(nn.Module):
    """A module of one's own that reads an image beside its tokens, in no places among them."""

    image_shape = (2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.look = nn.Embedding(VOCAB, 8), nn.Linear(4, 8)
        self.head = nn.Linear(8, VOCAB, bias=False)

    def forward(self, tokens: Tensor, pixel_values: Tensor) -> Tensor:
        return self.head(self.embed(tokens) + self.look(pixel_values).amax(1)[:, None])


class Unstated(Beside):
    image_shape = None


class Placed(Beside):
    def forward(self, tokens: Tensor, images: Tensor, places: Tensor) -> Tensor:
        return super().forward(tokens, images) + places.sum()


def test_a_module_of_ones_own_states_the_sizes_of_its_images() -> None:
    job = mw.Job(seq=SEQ, global_batch=ROWS, pins={"tp": 2}, search=False)
    made = mw.plan(Beside, cluster="cpu:2", job=job)  # which proves it
    assert {i.role for i in made.decisions.inputs} >= {"tokens", "images"}
    with pytest.raises(mw.MeshwrightError, match="image_shape is None; state the sizes"):
        mw.plan(Unstated, cluster="cpu:2", job=job)
    with pytest.raises(mw.MeshwrightError, match="image_places is None; .* as image_places = 576"):
        mw.plan(Placed, cluster="cpu:2", job=job)


def _traced(small: ModelSource) -> Traced | None:
    try:
        return trace(small.build, small.name, "f32", small.vocab_size)
    except mw.MeshwrightError:  # sizes that do not fit each other
        return None


@pytest.mark.long
def test_a_twin_has_fewer_layers_and_patches(tmp_path: Path) -> None:
    """Its segments are those of a model whose text, tower and images are larger."""
    wide = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8}
    text = wide | {"model_type": "llama", "vocab_size": 512, "num_hidden_layers": 4}
    tower = wide | {"model_type": "clip_vision_model", "num_hidden_layers": 6}
    tower |= {"image_size": 24, "patch_size": 4}
    config = transformers.LlavaConfig(text_config=text, vision_config=tower, image_token_id=9)
    config.architectures = CONFIG.architectures
    config.save_pretrained(tmp_path)
    source = load_model(f"hf-images:{tmp_path}")
    traced = trace(source.build, source.name, "f32", source.vocab_size)
    found = next(filter(None, map(_traced, twins(source))))
    assert stands_for(found, traced)
    assert 8 * parameter_bytes(found) < parameter_bytes(traced)
    assert (traced.lengths[0], found.lengths[0]) == (37, 17)
