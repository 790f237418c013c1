"""Files that mistaken commands are given, by name; what is no text is bytes."""

import gzip
import os
import shutil
from pathlib import Path

from meshwright.cli import main

SIZES = ("--seq", "8", "--global-batch", "4")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9

OWN = '''"""Models, losses, data and callbacks of a user who errs."""
from torch import nn

NUMBER = 3


class Net(nn.Module):
    vocab_size = 256

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 8)
        self.head = nn.Linear(8, 256)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


class Raises(Net):
    def forward(self, tokens):
        raise KeyError("weight")


class Summed(Net):
    def forward(self, tokens):
        return self.embed(tokens).sum(-1)


class Text(Net):
    def forward(self, tokens):
        return "logits"


class TakesLabels(Net):
    def forward(self, tokens, labels):
        return self.head(self.embed(tokens))


class Branches(Net):
    def forward(self, tokens):
        x = self.head(self.embed(tokens))
        return x if x.sum() > 0 else -x


class Empty(nn.Module):
    vocab_size = 256

    def forward(self, tokens):
        return nn.functional.one_hot(tokens, 256).float()


def needs_size(size):
    return Net()


def raises():
    raise RuntimeError("no such\\nthing")


def gives_none():
    return None


def gives_class():
    return Net


def loss_of_one(logits):
    return logits.mean()


def loss_of_text(logits, labels):
    return "x"


def loss_of_rows(logits, labels):
    return logits.mean(-1)


def loss_raises(logits, labels):
    raise RuntimeError("loss fails")


def loss_is_nan(logits, labels):
    return logits.mean() * float("nan")


class Needs:
    def __init__(self, x):
        pass


class Fails:
    def __init__(self):
        raise RuntimeError("no file")


class Silent:
    pass


class FailsAtStart:
    def on_start(self, run):
        raise RuntimeError("no start")


def fails_at_step(*_):
    raise RuntimeError("callback\\nfails")


def text_rows(index, length):
    return "text"


def short_rows(index, length):
    return [1]


def high_rows(index, length):
    return [999] * length


def failing_rows(index, length):
    raise KeyError("row")


def rows_of_none():
    return [1]


class Turned(Net):
    def __init__(self):
        super().__init__()
        self.turn = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))


class Chooses(Net):
    def __init__(self):
        super().__init__()
        if self.head.weight.sum() > 0:
            self.scale = 2


TABLE = nn.Embedding(256, 1).weight.detach().flatten()


def loss_of_table(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), TABLE)
'''

FILES: dict[str, str | bytes] = {
    "own.py": OWN,
    "raises_at_import.py": "raise RuntimeError('at\\nimport')",
    "exits_at_import.py": "raise SystemExit(0)",
    "syntax_error.py": "def f(:\n",
    "lacks_import.py": "import no_such_library\n",
    "picture.png": PNG,
    "picture.toml": PNG,
    "text.gz": gzip.compress(b"text" * 100, mtime=0),
    "empty.txt": "",
    "empty.toml": "",
    "in.txt": "some text here " * 20,
    "latin.toml": "# f\xfcr\npreset = 'tiny'".encode("latin-1"),
    "json.toml": '{"preset": "tiny"}',
    "negative.toml": "preset = 'tiny'\nlayers = -1",
    "texts.toml": "preset = 'tiny'\nlayers = 'two'",
    "model.toml": "preset = 'tiny'\n",
    "badcluster.toml": "name = 'x'\nnodes = 1\n",
    "list.json": "[1, 2]",
    "plan.json": '{"a": 1}',
    "old.txt": "meshwright plan v1\n",
    "list.jsonl": "[1]\n",
    "numbers.jsonl": '{"text": 3}\n',
    "other_field.jsonl": '{"content": "a"}\n',
    "rows.jsonl": '{"text": "a"}\n',
    "latin.jsonl": '{"text": "f\xfcr"}\n'.encode("latin-1"),
    "short.bin": b"abc",
    "emptymix.toml": "",
    "ownmix.toml": '[[source]]\ndata = "py:own:Rows"\n',
    "negmix.toml": '[[source]]\npath = "data"\nweight = -1\n',
    "job.toml": 'model = "tiny"\n[plan]\ncluster = "cpu:1"\nseq = 8\nglobal_batch = 4\n',
    "keys.toml": 'model = "tiny"\n[plan]\nseq = 8\nglobal_batch = 4\nsteps = 3\n',
    "top.toml": 'model = "tiny"\nweights = "x"\n[plan]\nseq = 8\nglobal_batch = 4\n',
    "below.toml": 'model = "tiny"\n[plan]\nseq = 8\n[run]\nglobal_batch = 4\nrestarts = 2\n',
    "lists.toml": 'model = ["tiny"]\n[plan]\nseq = [8]\nglobal_batch = 4\n',
    "badhf/config.json": "{",
    "badweights/model.safetensors": b"short",
    "folder_of_notes/notes.md": "mine",
    "baddata/manifest.json": "{",
    "badrun/run.json": "{",
    "oldrun/run.json": '{"version": "meshwright run v0"}',
    "broken_step/manifest.json": "{}",
    "broken_program/main.py": "x",
}


def write_files(top: Path) -> None:
    """Write FILES into a folder, and folders that are empty."""
    for name, text in FILES.items():
        path = top / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for name in ("folder", "folder.toml"):
        (top / name).mkdir()


def write_results(top: Path) -> None:
    """Write what commands make, into a folder that is the current one: plans one.txt, two.txt of
    two ranks and other.txt of another model, their programs, shards in data/, a run in trained/."""
    clusters = {
        "one": ("tiny", "cpu:1"),
        "two": ("tiny", "cpu:2"),
        "other": ("tiny-llama", "cpu:1"),
    }
    for name, (model, cluster) in clusters.items():
        words = ["plan", model, *SIZES, "--cluster", cluster, "--no-search", "-o", f"{name}.txt"]
        assert main(words) == 0
        assert main(["compile", f"{name}.txt", "-o", name]) == 0
    plan = (top / "one.txt").read_text()  # cut within a name, whatever its numbers' lengths are
    (top / "cut.txt").write_text(plan[: plan.index("layers.3.attention_norm.weight") + 200])
    assert main(["data", "tokenize", "in.txt", "-o", "data"]) == 0
    words = ["--steps", "2", "--save-every", "2", "--no-compile", "--eval-batches", "1"]
    assert main(["run", "one", *words, "--out", "trained"]) == 0
    shutil.copytree("trained", "nocheckpoints")
    shutil.rmtree("nocheckpoints/checkpoints")
    said = (top / "nocheckpoints" / "run.json").read_text()
    assert os.path.exists("trained/checkpoints/step_00000002") and "starts" in said
