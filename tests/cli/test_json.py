"""What --json prints: the keys that docs/json.md has for its command, no more and no fewer."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.api import here, probing
from meshwright.cli import main
from meshwright.runtime.control.address import Address, write_address
from meshwright.runtime.control.endpoint import Endpoint
from meshwright.runtime.control.metrics import metrics_text
from meshwright.runtime.host import host_name

DOCS = Path(__file__).parents[2] / "docs" / "json.md"
PLAN = ["plan", "tiny-llama", "--cluster", "cpu:2", "--seq", "32", "--global-batch", "4"]
RUN = ["--no-compile", "--save-every", "2", "--eval-batches", "1"]
# Keeps what a live run tells of itself.
TELLING = """import json
from runtime.control.address import read_address
from runtime.control.client import status_of

def tell(event):
    (event.out / "told.json").write_text(json.dumps(status_of(read_address(event.out))))
"""
ATTEMPT = {
    "job": "7", "restart": 0, "number": 1, "nodes": ["node1"], "began_s": 1.0, "ended_s": 2.0,
    "code": 0, "first": 0, "saved": 2, "failed": {}, "then": "done: the run ended",
}  # fmt: skip


def documented() -> dict[str, dict[str, dict]]:
    """The keys of every format; of an object or a list of objects, their own below."""
    found: dict[str, dict[str, dict]] = {}
    for section in re.split(r"^## ", DOCS.read_text(), flags=re.MULTILINE)[1:]:
        (name,) = re.findall(r"`(meshwright\.\S+)/1`", section)
        rows = re.findall(r"^\| `(\S+)` \|", section, flags=re.MULTILINE)
        keys: dict[str, dict] = {}
        for row in rows:
            *above, key = row.split(".")
            where = keys
            for part in above:
                where = where[part.removesuffix("[]")]
            where[key.removesuffix("[]")] = {}
        found[name] = keys
    return found


def printed(value: object, keys: dict[str, dict]) -> object:
    """The keys of a printed value as far down as the documented ones go."""
    if isinstance(value, list):
        return printed(value[0], keys) if value else keys
    if not keys or value is None:
        return keys
    assert isinstance(value, dict), (value, keys)
    return {name: printed(inner, keys.get(name, {})) for name, inner in value.items()}


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """A command line of every format, in an order in which each finds what it reads."""
    top = tmp_path_factory.mktemp("json")
    plan, other, program, run, data, weights = (
        str(top / n) for n in ("plan", "other", "program", "run", "data", "weights")
    )
    cluster, measured = str(top / "c.toml"), str(top / "measured.toml")
    job, text = top / "job.toml", top / "in.txt"
    text.write_text("what a corpus says\n" * 40)
    job.write_text(
        'model = "tiny-llama"\n[plan]\ncluster = "cpu:1"\nseq = 32\nglobal_batch = 2\n'
        'effort = "fast"\n[run]\nsteps = 1\nno_compile = true\neval_batches = 1\n'
    )
    return [
        ["models", "list"],
        ["models", "classes"],
        ["models", "show", "tiny"],
        ["clusters", "list"],
        ["clusters", "show", "h200:8"],
        ["clusters", "new", cluster],
        ["probe", "-o", measured],
        [*PLAN, "-o", plan],
        [*PLAN, "--pin", "pp=2", "-o", other],
        ["explain", plan],
        ["explain", plan, "--value", "ffn_silu"],
        ["explain", plan, "--segment", "ffn"],
        ["explain", plan, "--timeline", str(top / "step.svg")],
        ["explain", plan, "--why-not", "pp=2"],
        ["diff", plan, other],
        ["what-if", "--plan", plan, "--cluster", "cpu:2"],
        ["compile", plan, "-o", program],
        ["run", program, *RUN, "--steps", "2", "--out", run, "--callback", "py:telling:tell"],
        ["run", program, "--dry"],
        ["resume", run, "--steps", "3", "--allow-change"],
        ["train", str(job), "--out", str(top / "trained")],
        ["runs", str(top)],
        ["diff", run, str(top / "trained")],
        ["plot", run, "-o", str(top / "runs.svg")],
        ["export", run, "-o", weights],
        ["import", weights, "--model", "tiny-llama", "-o", str(top / "again")],
        ["generate", run, "--prompt", "def", "--max-tokens", "2"],
        ["data", "tokenize", str(text), "-o", data, "--workers", "1"],
        ["data", "info", data],
        ["data", "verify", data],
        ["preflight", program],
        ["submit", program, "--dry-run", "--out", str(top / "job")],
        ["train", str(job), "--slurm", "--prepare", "--out", str(top / "planned")],
        ["jobs"],
        ["logs", "7"],
        ["cancel", "7"],
        ["status", "7"],
        ["control", "list", str(top)],
        ["control", "status", run],
        ["control", "metrics", run],
        ["control", "save", run],
    ]


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the commands of Slurm that jobs and cancel call: tests/slurm has it all."""
    said_by = {"squeue": "7|RUNNING|None|node1", "scontrol": "JobState=RUNNING", "scancel": ""}
    for name, said in said_by.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "telling.py").write_text(TELLING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def enact(run: Path, state: Path) -> Endpoint:
    """Make a run that ended job 7, whose endpoint tells what the run told while it was live."""
    told = json.loads((run / "told.json").read_text())
    endpoint = Endpoint(lambda: told, lambda: metrics_text(told), lambda command: None)
    write_address(run, Address(host_name(), endpoint.port, endpoint.token, "7", os.getpid()))
    (run / "slurm").mkdir()
    (run / "slurm" / "job-7.log").write_text("a log\n")
    (run / "slurm" / "attempts.jsonl").write_text(json.dumps(ATTEMPT) + "\n")
    state.mkdir(parents=True)
    (state / "jobs.jsonl").write_text(json.dumps({"job": "7", "out": str(run)}) + "\n")
    return endpoint


def test_every_command_prints_the_keys_that_are_documented(
    commands: list[list[str]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    scheduler: None,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(probing, "MOST_CPU_RANKS", 1)
    monkeypatch.setattr(here, "remember_probed", lambda _: "")  # other tests plan for auto
    known, seen = documented(), set()
    for words in commands:
        if words == ["jobs"]:
            run = Path(commands[-1][-1])
            endpoint = enact(run, tmp_path / "state" / "meshwright")
        capfd.readouterr()
        code = main([*words, "--json"])
        assert code == 0 or (words[0], code) == ("preflight", 1), (words, capfd.readouterr().err)
        result = json.loads(capfd.readouterr().out, parse_constant=_refused(words))
        name, version = result.pop("format").split("/")
        assert version == "1"
        assert printed(result, known[name]) == known[name], words
        seen.add(name)
    endpoint.close()
    assert seen == set(known)


def _refused(words: list[str]) -> Callable[[str], None]:
    """NaN and infinities are no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{words} print {constant}")

    return refuse
