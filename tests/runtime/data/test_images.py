"""Texts with an image each: as rows of one length with the image in its places, or refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from meshwright.runtime.data import IGNORED, DataError, Part, open_held_out, open_reader
from meshwright.runtime.data.tokenize import Settings, tokenize

SEQ, COUNT, PLACES, SHAPE, TOKEN = 12, 9, 3, (1, 2, 2), 64
READS = {"images": SHAPE, "places": (PLACES,)}
# Document k begins with k letters, then its image, and tells k by the letter.
TEXTS = [chr(97 + k) * k + chr(TOKEN) + chr(97 + k) * (1 + 4 * k % 11) for k in range(COUNT)]


def write(folder: Path, texts: list[str], token: int | None = TOKEN, images: int = COUNT) -> str:
    folder.mkdir(exist_ok=True)
    lines = folder / "rows.jsonl"
    lines.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    tokenize([str(lines)], folder / "text", Settings(shard_tokens=16))
    pixels = np.arange(images, dtype=np.float32)[:, None, None, None] + np.zeros(SHAPE, "f4")
    np.save(folder / "images.npy", pixels)
    if token is not None:
        (folder / "images.toml").write_text(f"token = {token}\n")
    return f"images:{folder}"


def reader_of(name: str, rows: int = COUNT, reads: dict | None = None):
    reads = READS if reads is None else reads
    return open_reader(name, global_batch=rows, seq=SEQ, seed=1, vocab=256, reads=reads)


def expected(text: str) -> tuple[list[int], list[int], list[int]]:
    """By hand: the tokens, labels and places of a document; a NUL ends it."""
    before, behind = text.split(chr(TOKEN)) if chr(TOKEN) in text else ("", text)
    ids: list[int | None] = [*before.encode(), *[None] * PLACES, *behind.encode(), 0]
    ids = ids[: SEQ + 1]
    tokens = [i or 0 for i in ids[:-1]] + [0] * (SEQ + 1 - len(ids))
    labels = [IGNORED if i is None else i for i in ids[1:]] + [IGNORED] * (SEQ + 1 - len(ids))
    return tokens, labels, [at for at, i in enumerate(ids) if i is None]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("data"), TEXTS)


@pytest.mark.parametrize("token", [TOKEN, None])
def test_rows_are_texts_with_their_image(token: int | None, tmp_path: Path) -> None:
    texts = TEXTS if token else [text.replace(chr(TOKEN), "") for text in TEXTS]
    batch = reader_of(write(tmp_path / "d", texts, token)).rows(0, 0, COUNT)
    numbers = [int(image.flatten()[0]) for image in batch.others["images"]]
    assert sorted(numbers) == list(range(COUNT))
    for row, number in enumerate(numbers):
        parts = (batch.tokens[row], batch.labels[row], batch.others["places"][row])
        assert tuple(part.tolist() for part in parts) == expected(texts[number])
    assert batch.label_count == int((batch.labels != IGNORED).sum())


def test_an_image_may_have_all_its_tokens(data: str, tmp_path: Path) -> None:
    spelled = [text.replace(chr(TOKEN), chr(TOKEN) * PLACES) for text in TEXTS]
    one, all_of_them = (reader_of(n).rows(0, 0, COUNT) for n in (data, write(tmp_path, spelled)))
    assert torch.equal(one.tokens, all_of_them.tokens)
    assert torch.equal(one.labels, all_of_them.labels)
    assert torch.equal(one.others["places"], all_of_them.others["places"])


def test_an_image_may_stand_beside_the_text(data: str) -> None:
    batch = reader_of(data, reads={"images": SHAPE}).rows(0, 0, COUNT)
    for row, image in enumerate(batch.others["images"]):
        text = TEXTS[int(image.flatten()[0])].replace(chr(TOKEN), "")
        ids = [*text.encode(), 0][: SEQ + 1]
        assert batch.tokens[row, : len(ids) - 1].tolist() == ids[:-1]
        assert batch.labels[row].tolist() == ids[1:] + [IGNORED] * (SEQ + 1 - len(ids))
    assert batch.label_count == int((batch.labels != IGNORED).sum())


def test_ranks_read_the_rows_of_one_batch_and_its_count(data: str) -> None:
    whole = reader_of(data, 4).rows(3, 0, 4)
    parts = [reader_of(data, 4).rows(3, start, start + 2) for start in (0, 2)]
    for role in READS:
        assert torch.equal(torch.cat([part.others[role] for part in parts]), whole.others[role])
    assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)
    assert [part.label_count for part in parts] == [whole.label_count] * 2


def test_an_evaluation_reads_each_text_once(data: str) -> None:
    held_out = open_held_out("demo", data, SEQ, READS)
    batches = list(held_out.batches(Part(4, SEQ, 0, 4)))
    seen = [int(image.flatten()[0]) for batch in batches for image in batch.others["images"]]
    assert seen == [*range(COUNT), *[COUNT - 1] * 3]
    assert (batches[-1].labels[1:] == IGNORED).all() and batches[-1].label_count > 0
    with pytest.raises(DataError, match="names no held-out part; give --eval-data images:DIR"):
        open_held_out(data, "", SEQ, READS)


def test_drawn_images_are_full_rows() -> None:
    first, again, second = (reader_of("random:50", 4).rows(n, 0, 4) for n in (0, 0, 1))
    assert first.others["images"].shape == (4, *SHAPE)
    assert torch.equal(first.others["images"], again.others["images"])
    assert not torch.equal(first.others["images"], second.others["images"])
    assert first.label_count == int((first.labels >= 0).sum()) == 4 * (SEQ - PLACES + 1)


def refused(tmp_path: Path, said: str, texts: list[str] = TEXTS, **options: int) -> None:
    with pytest.raises(DataError, match=said):
        reader_of(write(tmp_path, texts, **options))


def test_texts_and_images_that_do_not_fit_are_refused(data: str, tmp_path: Path) -> None:
    refused(tmp_path / "fewer", f"{COUNT} texts and 8 images", images=8)
    twice = ["a", "b" + f"{chr(TOKEN)}c" * 2]
    said = f"document 1 has 2 tokens {TOKEN}.*give one, or 3"
    refused(tmp_path / "twice", said, twice, images=2)
    late = ["a" * 10 + chr(TOKEN)]
    refused(tmp_path / "late", "begins at token 10 and takes 3, a row has 12", late, images=1)
    with pytest.raises(DataError, match=r"images of \[1, 2, 2\], the model reads \[3, 2, 2\]"):
        reader_of(data, reads=READS | {"images": (3, 2, 2)})
    with pytest.raises(DataError, match="demo holds no images.*give images:DIR"):
        reader_of("demo")
    with pytest.raises(DataError, match="the model reads no images; plan an image-text model"):
        reader_of(data, reads={})


def test_files_that_hold_no_images_are_refused(tmp_path: Path) -> None:
    folder = Path(write(tmp_path, TEXTS).removeprefix("images:"))
    for text in ("token = 'a'\n", "tokens = 3\n", "token =\n"):
        (folder / "images.toml").write_text(text)
        with pytest.raises(DataError, match=r"images\.toml"):
            reader_of(f"images:{folder}")
    (folder / "images.toml").unlink()
    np.save(folder / "images.npy", np.zeros((COUNT, *SHAPE), np.uint8))
    with pytest.raises(DataError, match=r"images\.npy is uint8 .*give \[images, C, H, W\]"):
        reader_of(f"images:{folder}")
    (folder / "images.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match=r"cannot read .*images\.npy"):
        reader_of(f"images:{folder}")
