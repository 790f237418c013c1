"""A stock encoder-decoder goes on here as it would have gone on in transformers, and writes."""

import json
from pathlib import Path

import pytest
import torch
import transformers

import meshwright as mw
from meshwright.cli import main
from meshwright.models.generate import Sampling, generate
from meshwright.runtime.data.tokenize import Settings, tokenize

SEQ, COUNT, STEPS, RATE, NUL = 12, 8, 40, 3e-3, 0
WORDS = ("plan", "mesh", "rank", "step", "loss", "tile", "node", "axis")
CONFIG = transformers.T5Config(
    vocab_size=256, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
    pad_token_id=1, decoder_start_token_id=1, eos_token_id=NUL,
    architectures=["T5ForConditionalGeneration"],
)  # fmt: skip


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("stock")
    transformers.T5ForConditionalGeneration(CONFIG).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Each word with the word backwards, eight pairs: a global batch is all of them."""
    folder = tmp_path_factory.mktemp("pairs")
    rows = [{"there": word, "back": word[::-1]} for word in WORDS]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, field in (("source", "there"), ("target", "back")):
        tokenize([str(folder / "rows.jsonl")], folder / name, Settings(field=field))
    return f"pairs:{folder}"


def _by_transformers(stock: Path) -> list[float]:
    """Losses of a plain training on labels, of which the library makes what the decoder reads."""
    model = transformers.T5ForConditionalGeneration.from_pretrained(stock).train()
    source = torch.tensor([[*word.encode(), NUL] for word in WORDS])
    labels = torch.tensor([[*word[::-1].encode(), NUL] for word in WORDS])
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(input_ids=source, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_it_trains_as_transformers_does_and_generates(
    stock: Path, data: str, tmp_path: Path
) -> None:
    job = mw.Job(seq=SEQ, global_batch=COUNT, pins={"dp": 2}, search=False)
    program = mw.compile(mw.plan(f"hf:{stock}", cluster="cpu:2", job=job), tmp_path / "p")
    run = mw.run(
        program, data=data, eval_data=data, steps=STEPS, weights=str(stock), lr=RATE,
        schedule="constant", warmup=0, no_compile=True, out=str(tmp_path / "run"),
    )  # fmt: skip
    expected = torch.tensor(_by_transformers(stock))
    torch.testing.assert_close(torch.tensor(run.losses), expected, rtol=1e-4, atol=0)
    assert expected[-1] < 0.5 * expected[0]
    assert run.evaluation and run.evaluation.loss < float(expected[-1])
    assert main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "hf")]) == 0
    sampling = Sampling(max_tokens=5, temperature=0)
    found = [generate(tmp_path / "hf", word, sampling, None)[0] for word in WORDS[:3]]
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "hf")
    for word, text in zip(WORDS, found, strict=False):
        ids = torch.tensor([[*word.encode(), NUL]])
        own = model.generate(ids, do_sample=False, max_new_tokens=5)[0, 1:]
        assert text.encode().rstrip(b"\0") == bytes(own.tolist()).rstrip(b"\0")
