"""A stock image-text model goes on here as it would have gone on in transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import meshwright as mw
from meshwright.cli import main
from meshwright.models import ModelError, load_model
from meshwright.models.huggingface import reads_images
from meshwright.runtime.data.tokenize import Settings, tokenize

SEQ, COUNT, PLACES, TOKEN, STEPS, RATE = 16, 8, 4, 1, 20, 3e-3
WORDS = ("plan", "mesh", "rank", "step", "loss", "tile", "node", "axis")
CONFIG = transformers.LlavaConfig(
    text_config={
        "model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    vision_config={
        "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8, "patch_size": 4,
        "vision_use_head": False,
    },
    image_token_id=TOKEN, vision_feature_layer=-1, vision_feature_select_strategy="full",
    architectures=["LlavaForConditionalGeneration"],
)  # fmt: skip


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("stock")
    transformers.LlavaForConditionalGeneration(CONFIG).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((COUNT, 3, 8, 8)).astype("f4")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, pixels: np.ndarray) -> str:
    """Words behind an image, eight of them: a global batch is all."""
    folder = tmp_path_factory.mktemp("images")
    rows = [{"text": f"is \1{word}"} for word in WORDS]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tokenize([str(folder / "rows.jsonl")], folder / "text", Settings())
    np.save(folder / "images.npy", pixels)
    (folder / "images.toml").write_text(f"token = {TOKEN}\n")
    return f"images:{folder}"


def _by_transformers(stock: Path, pixels: np.ndarray) -> list[float]:
    """Losses of a plain training on labels, none of which is of an image."""
    model = transformers.LlavaForConditionalGeneration.from_pretrained(stock).train()
    ids = torch.tensor([[*b"is ", *[TOKEN] * PLACES, *word.encode(), 0] for word in WORDS])
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        labels = ids.masked_fill(ids == TOKEN, -100)
        loss = model(input_ids=ids, pixel_values=torch.from_numpy(pixels), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_it_trains_as_transformers_does_and_goes_back(
    stock: Path, data: str, pixels: np.ndarray, tmp_path: Path
) -> None:
    job = mw.Job(seq=SEQ, global_batch=COUNT, pins={"dp": 2}, search=False)
    program = mw.compile(mw.plan(f"hf-images:{stock}", cluster="cpu:2", job=job), tmp_path / "p")
    run = mw.run(
        program, data=data, eval_data=data, steps=STEPS, weights=str(stock), lr=RATE,
        schedule="constant", warmup=0, no_compile=True, out=str(tmp_path / "run"),
    )  # fmt: skip
    expected = torch.tensor(_by_transformers(stock, pixels))
    torch.testing.assert_close(torch.tensor(run.losses), expected, rtol=1e-4, atol=0)
    assert expected[-1] < 0.8 * expected[0]
    assert run.evaluation and run.evaluation.loss < float(expected[-1])
    assert main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "hf")]) == 0
    own, back = (
        transformers.LlavaForConditionalGeneration.from_pretrained(p).state_dict()
        for p in (stock, tmp_path / "hf")
    )
    assert own.keys() == back.keys()
    assert all(not torch.equal(own[n], back[n]) for n in own if n.endswith("proj.weight"))


def test_text_alone_and_a_class_without_images_are_refused(
    stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "text"
    transformers.LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(folder)
    words = ["--cluster", "cpu:1", "--seq", "16", "--global-batch", "8"]
    assert main(["plan", f"hf-images:{folder}", *words]) == 2
    assert "llama is no image-text model of transformers; write hf:" in capsys.readouterr().err
    words[3] = "4"
    assert main(["plan", f"hf-images:{stock}", *words]) == 2
    assert "5" in capsys.readouterr().err


def test_its_text_part_alone_takes_the_same_weights(
    stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss of the first step is that of the stock class on text without an image."""
    words = np.frombuffer(b"plans of meshes " * 9, np.uint8)
    (tmp_path / "words.bin").write_bytes(words.tobytes())
    job = mw.Job(seq=SEQ, global_batch=1, pins={"tp": 1}, search=False)
    program = mw.compile(mw.plan(f"hf:{stock}", cluster="cpu:1", job=job), tmp_path / "p")
    run = mw.run(
        program, data=f"file:{tmp_path / 'words.bin'}", steps=1, weights=str(stock), warmup=0,
        no_compile=True, quiet=True, out=str(tmp_path / "run"),
    )  # fmt: skip
    model = transformers.LlavaForConditionalGeneration.from_pretrained(stock)
    row = torch.from_numpy(words[:SEQ].astype("i8"))[None]
    following = torch.from_numpy(words[1 : SEQ + 1].astype("i8"))
    with torch.no_grad():
        own = torch.nn.functional.cross_entropy(model(input_ids=row).logits[0], following)
    assert abs(run.losses[0] - float(own)) < 1e-5


def test_a_class_that_reads_text_or_images_is_taken_as_asked(tmp_path: Path) -> None:
    """Git is a causal language model of the library, and an image-text model, which has no id for
    the places of an image."""
    config = transformers.GitConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1)
    config.save_pretrained(tmp_path)
    assert not reads_images("hf:git", config) and reads_images("hf-images:git", config)
    assert load_model(f"hf:{tmp_path}").vocab_size == 64
    with pytest.raises(ModelError, match="git has no image_token_id in its config"):
        load_model(f"hf-images:{tmp_path}")
