"""Data by the commands: tokenize, train on a mixture, resume elsewhere; refusals in one line."""

import json
import shutil
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.runtime.data import held_out_name

RUN = ["--no-compile", "--schedule", "constant", "--eval-batches", "1"]


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command ends with."""
    capfd.readouterr()
    assert main(list(arguments)) == 2
    errors = capfd.readouterr().err
    lines = errors.splitlines()
    assert "Traceback" not in errors
    assert len(lines) == 1 and lines[0].startswith("error: "), errors
    return lines[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two corpora in shards, the first with a held-out part; a mixture; programs one and two."""
    top = tmp_path_factory.mktemp("data")
    for name, words in (("a", "red green "), ("b", "one two three "), ("held", "green red ")):
        rows = [json.dumps({"text": f"{n} {words * (n % 9)}"}) + "\n" for n in range(90)]
        (top / f"{name}.jsonl").write_text("".join(rows))
    for name, more in (("held", []), ("a", ["--held-out", str(top / "held")]), ("b", [])):
        text = ["data", "tokenize", str(top / f"{name}.jsonl"), "-o", str(top / name)]
        assert main([*text, "--shard-tokens", "1000", "--workers", "2", *more]) == 0
    sources = [
        f'[[source]]\npath = "{name}"\nweight = {w}\n' for name, w in (("a", 0.7), ("b", 0.3))
    ]
    (top / "mix.toml").write_text("".join(sources))
    sizes = ["--seq", "16", "--global-batch", "6", "--dtype", "f64"]
    for name, mesh in (("one", ["cpu:1"]), ("two", ["cpu:2", "--pin", "dp=2"])):
        plan = str(top / f"{name}.txt")
        assert main(["plan", "tiny-llama", *sizes, "--cluster", *mesh, "-o", plan]) == 0
        assert main(["compile", plan, "-o", str(top / name)]) == 0
    return top


def losses(run: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.fixture(scope="module")
def first(folder: Path) -> Path:
    """A run of two ranks on the mixture, saved after each second step."""
    run = ["run", str(folder / "two"), "--data", f"mix:{folder / 'mix.toml'}", *RUN]
    more = ["--eval-data", f"shards:{folder / 'held'}", "--steps", "4", "--save-every", "2"]
    assert main([*run, *more, "--out", str(folder / "first")]) == 0
    return folder / "first"


def test_a_mixture_resumes_on_another_world_with_the_same_losses(
    folder: Path, first: Path, tmp_path: Path
) -> None:
    # The same tokens in another place: the checkpoint knows them by their hash.
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("a", "b"):
        shutil.copytree(folder / name, moved / name)
    shutil.copy(folder / "mix.toml", moved)
    start = first / "checkpoints" / "step_00000002"
    run = ["run", str(folder / "one"), "--data", f"mix:{moved / 'mix.toml'}", *RUN]
    held_out = ["--eval-data", f"shards:{folder / 'held'}"]
    out = tmp_path / "second"
    assert main([*run, *held_out, "--steps", "4", "--resume", str(start), "--out", str(out)]) == 0
    whole, resumed = losses(first), losses(out)
    assert sorted(resumed) == [2, 3]
    for step, loss in resumed.items():
        assert abs(loss - whole[step]) <= 1e-12 * abs(whole[step])


def test_a_resume_on_other_data_is_refused_with_both_hashes(
    folder: Path, first: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    start = str(first / "checkpoints" / "step_00000002")
    state = json.loads((Path(start) / "manifest.json").read_text())["state"]
    run = ["run", str(folder / "one"), "--resume", start, "--out", str(tmp_path), "--no-compile"]
    message = refused(capfd, *run, "--data", f"shards:{folder / 'a'}")
    now = _identity(folder / "a", capfd)
    assert state["data_identity"][:12] in message and now[:12] in message
    assert "give these as they were, or --allow-change" in message
    # The same sources in other proportions are other data, too.
    other = (folder / "mix.toml").read_text().replace("0.7", "0.6")
    (folder / "other.toml").write_text(other)
    assert "mix.toml" in refused(capfd, *run, "--data", f"mix:{folder / 'other.toml'}")


def _identity(folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    assert main(["data", "info", str(folder), "--json"]) == 0
    return json.loads(capfd.readouterr().out)["identity"]


def test_info_and_verify_say_what_is_there(
    folder: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["data", "info", str(folder / "a")]) == 0
    said = capfd.readouterr().out
    assert "90 documents" in said and "held out    ../held" in said
    assert held_out_name(f"shards:{folder / 'a'}", "") == f"shards:{folder / 'held'}"
    assert held_out_name(f"shards:{folder / 'b'}", "") == "none"
    assert "checked     sizes and SHA-256" in said
    assert main(["data", "verify", str(folder / "a")]) == 0
    assert "as the manifest says" in capfd.readouterr().out
    shutil.copytree(folder / "a", tmp_path / "a")
    data = bytearray((tmp_path / "a" / "shard_00001.ends").read_bytes())
    data[0] ^= 1
    (tmp_path / "a" / "shard_00001.ends").write_bytes(data)
    message = refused(capfd, "data", "verify", str(tmp_path / "a"))
    assert "shard_00001.ends has changed" in message and "the manifest says" in message


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_run_refuses_a_truncated_shard(
    ranks: str, folder: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copytree(folder / "a", tmp_path / "a")
    (tmp_path / "a" / "shard_00001.bin").write_bytes(b"short")
    run = ["run", str(folder / ranks), "--out", str(tmp_path / "run")]
    message = refused(capfd, *run, "--data", f"shards:{tmp_path / 'a'}")
    assert "shard_00001.bin has 5 bytes, the manifest says 1000" in message


def test_run_refuses_a_tokenizer_larger_than_the_model(
    folder: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{n}": n for n in range(1000)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(
        str(tmp_path / "tokenizer.json")
    )
    (tmp_path / "in.txt").write_text("w1")
    text = ["data", "tokenize", str(tmp_path / "in.txt"), "-o", str(tmp_path / "big")]
    assert main([*text, "--tokenizer", str(tmp_path), "--eos", "w999"]) == 0
    data = f"shards:{tmp_path / 'big'}"
    run = ["run", str(folder / "one"), "--out", str(tmp_path / "run")]
    message = refused(capfd, *run, "--data", data)
    assert "vocabulary of 1000, the model one of" in message
    message = refused(capfd, *run, "--eval-data", data)
    assert "vocabulary of 1000, the model one of" in message


def test_run_refuses_missing_held_out_data_before_the_first_step(
    folder: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = ["run", str(folder / "one"), "--eval-every", "1", "--out", str(tmp_path / "run")]
    message = refused(capfd, *run, "--data", f"shards:{folder / 'b'}")
    assert "names no held-out part" in message and "--eval-data" in message
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_tokenize_refuses_a_broken_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": \n{"text": "b"}\n')
    text = ["data", "tokenize", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out")]
    assert "in.jsonl:2: not JSON" in refused(capfd, *text)
    assert main([*text, "--on-bad", "skip"]) == 0
    said = capfd.readouterr()
    assert f"skipped {tmp_path}/in.jsonl:2" in said.err and "passed over 1 broken" in said.out


# Contents of a file, and the share of them that is no text, "" where it is one.
CONTENTS = {
    "a picture": (
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 400,
        "50.4% of the first 65,536 bytes",
    ),
    "a small picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "25.0% of the first 16 bytes"),
    "two bytes a letter": ("text".encode("utf-16-le"), "50.0% of the first 8 bytes"),
    "umlauts": (b"Der B\xe4r l\xe4uft \xfcber die Wiese.", ""),
    "letters that are cut": (b"a" + b"\xc3\xa4" * 2**20, ""),
    "nothing but text": (b"text", ""),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_is_no_text_is_refused_by_its_share(
    name: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data, said = CONTENTS[name]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.bin").write_bytes(data)
    (tmp_path / "in" / "b.txt").write_text("words")
    words = ["data", "tokenize", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    if said:
        message = refused(capfd, *words)
        assert f"a.bin: byte 0: {said} are no UTF-8 or NUL, of a text at most 20%" in message
        words += ["--on-bad", "skip"]
    assert main(words) == 0
    kept = b"" if said else data + b"\0"
    assert (tmp_path / "out" / "shard_00000.bin").read_bytes() == kept + b"words\0"


@pytest.mark.parametrize("command", [[], ["tokenize"], ["info"], ["verify"]])
def test_help_says_what_it_does(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["data", *command, "--help"])
    assert caught.value.code == 0 and len(capsys.readouterr().out.splitlines()) > 8
