"""A live run told from outside, and strangers at its endpoint."""

import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from launching import CLI, RUN, TIMEOUT_S, after_step, losses, rank_pids, rows

from meshwright.cli import main
from meshwright.runtime.control.address import Address, read_address, write_address
from meshwright.runtime.control.client import metrics_of, send, status_of
from meshwright.runtime.control.commands import Command, CommandError
from meshwright.runtime.control.endpoint import AT_ONCE, MOST_BYTES, Endpoint
from meshwright.runtime.control.windows import RankTimes, straggler_lines
from meshwright.runtime.training.controls import with_values
from meshwright.runtime.training.options import ABORTED, RunOptions
from meshwright.runtime.training.past_run import live_values


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("controlled")
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:2", "--pin", "dp=2"]
    assert main(["plan", "tiny", *sizes, "--no-search", "-o", str(folder / "plan.txt")]) == 0
    assert main(["compile", str(folder / "plan.txt"), "-o", str(folder / "program")]) == 0
    return folder / "program"


def started(program: Path, out: Path, steps: int, *more: str) -> subprocess.Popen:
    steps_of = ["--steps", str(steps), "--warmup", "1", *more]
    words = [*CLI, "run", str(program), *RUN, *steps_of, "--out", str(out)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


def told(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["control", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_live_run_saves_changes_is_looked_at_and_stops(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command takes effect on both ranks within a step of when it is taken."""
    out = tmp_path / "run"
    process = started(program, out, 4000)
    try:
        after_step(out, 3)
        address = read_address(out)
        assert address is not None
        assert stat.S_IMODE((out / "control.json").stat().st_mode) == 0o600
        before = told("status", str(out), capsys=capsys)
        assert before["steps"] == 4000 and before["model"] == "tiny" and before["loss"] > 0
        assert told("list", str(tmp_path), capsys=capsys)["runs"][0]["run"] == str(out)
        told("set", str(out), "lr=1e-5", "log_every=2", capsys=capsys)
        told("save", str(out), capsys=capsys)
        told("stragglers", str(out), "--steps", "2", capsys=capsys)
        told("profile", str(out), "--steps", "1", capsys=capsys)  # waits for the one before
        last = len(losses(out))
        after_step(out, last + 8)
        rates = {row["step"]: row["lr"] for row in rows(out) if "lr" in row}
        changed = min(step for step, rate in rates.items() if rate == 1e-5)
        assert changed <= before["step"] + 40 and rates[changed - 1] != 1e-5
        found = json.loads((out / "stragglers.json").read_text())
        assert [r["rank"] for r in found["ranks"]] == [0, 1] and found["ranks"][0]["work_ms"] > 0
        assert len(list((out / "profile").glob("step_*/*"))) == 2
        assert list((out / "checkpoints").glob("step_*"))
        assert "meshwright_loss" in metrics_of(address)
        told("save-stop", str(out), capsys=capsys)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
    said = json.loads((out / "run.json").read_text())
    assert said["state"] == "stopped" and said["options"]["lr"] == 1e-5
    assert not (out / "control.json").exists()
    newest = max((out / "checkpoints").glob("step_*"))
    assert int(newest.name[5:]) == len(losses(out))
    held = json.loads((newest / "manifest.json").read_text())["options"]
    assert held["lr"] == 1e-5


def test_a_stop_evaluates_after_the_step_that_was_the_last(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    process = started(program, out, 4000)
    try:
        after_step(out, 3)
        told("stop", str(out), capsys=capsys)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
    evaluated = [row["step"] for row in rows(out) if "eval_loss" in row]
    assert evaluated == [len(losses(out)) - 1]


@pytest.fixture(scope="module")
def died(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose rate was set after its first checkpoint and that died before its second."""
    out = tmp_path_factory.mktemp("died") / "run"
    process = started(program, out, 200, "--save-every", "100")
    try:
        after_step(out, 100)
        assert main(["control", "set", str(out), "lr=4e-4", "warmup=2"]) == 0
        until = time.monotonic() + TIMEOUT_S
        while rows(out)[-1].get("lr") != 4e-4:
            assert time.monotonic() < until
        for pid in rank_pids(process).copy():
            os.kill(pid, signal.SIGKILL)
        assert process.wait(TIMEOUT_S) == 1
    finally:
        process.kill()
    assert [path.name for path in (out / "checkpoints").glob("step_*0")] == ["step_00000100"]
    return out


def _same_command(program: Path, out: Path, *more: str) -> list[str]:
    steps = ["--steps", "200", "--warmup", "1", "--save-every", "100"]
    return ["run", str(program), *RUN, *steps, *more, "--out", str(out)]


@pytest.mark.parametrize("how", ["resume", "again"])
def test_a_run_that_died_goes_on_with_what_was_set(
    how: str, died: Path, program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(died, out)
    resume = ["resume", str(out)]
    assert main([*resume, "--lr", "3e-3"]) == 2
    assert "would be 1.000e-03 by --lr 0.001" in capfd.readouterr().err
    assert main(resume if how == "resume" else _same_command(program, out)) == 0
    said = capfd.readouterr().err
    line = "going on with what meshwright control set after this checkpoint: --lr 0.0004"
    assert said.count(line) == 1
    assert {row["lr"] for row in rows(out)[100:] if "lr" in row} == {4e-4}
    assert main(_same_command(program, out, "--lr", "1e-4", "--steps", "201")) == 2
    assert "--allow-change to go on so" in capfd.readouterr().err


def test_a_run_whose_rate_was_set_takes_no_other_jump(
    died: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(died, out)
    said = json.loads((out / "run.json").read_text())
    launch = said["set"]["launch"]
    assert live_values(out, launch) == {"lr": 4e-4, "warmup": 2}
    assert live_values(out, "another") == {}
    assert main(["resume", str(out), "--floor", "0.5", "--schedule", "cosine"]) == 2
    error = capfd.readouterr().err
    assert "--schedule cosine" in error and "by --lr" not in error.partition("would be")[2]


def test_an_abort_ends_a_run_at_once(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = started(program, out, 100_000)
    try:
        after_step(out, 3)
        address = read_address(out)
        assert address is not None
        send(address, Command("abort"))
        assert process.wait(TIMEOUT_S) == ABORTED
        assert process.stderr is not None
        assert "error: aborted by meshwright control" in process.stderr.read()
    finally:
        process.kill()
    assert json.loads((out / "run.json").read_text())["state"] == "aborted"


class Listening:
    """An endpoint, and what it took."""

    def __init__(self) -> None:
        self.taken: list[Command] = []
        self.endpoint = Endpoint(lambda: {"step": 7}, lambda: "text", self.taken.append)
        self.address = Address("here", self.endpoint.port, self.endpoint.token, "", 1)

    def raw(self, data: bytes, *, wait: bool = True) -> bytes:
        """Return what the endpoint replies to bytes."""
        with socket.create_connection(("127.0.0.1", self.endpoint.port), timeout=10) as stream:
            try:
                stream.sendall(data)
                stream.shutdown(socket.SHUT_WR)
                return stream.recv(4096) if wait else b""
            except OSError:
                return b""


@pytest.fixture
def listening() -> Iterator[Listening]:
    found = Listening()
    yield found
    found.endpoint.close()


def request(token: str, body: bytes = b'{"do": "save"}', path: str = "/command") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nAuthorization: {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_the_endpoint_takes_nothing_without_its_token(listening: Listening) -> None:
    good = f"Bearer {listening.endpoint.token}"
    for token in ("", "Bearer", "Bearer x", good[:-1], f"{good}x", good.lower(), "Bearer \u00e9"):
        assert b" 401 " in listening.raw(request(token)), token
    assert b" 401 " in listening.raw(b"GET /status HTTP/1.1\r\n\r\n")
    assert listening.taken == []
    assert b" 200 " in listening.raw(request(good))
    assert listening.taken == [Command("save")]


def test_the_endpoint_listens_on_loopback_alone(listening: Listening) -> None:
    assert listening.endpoint._server.server_address[0] == "127.0.0.1"


def test_a_token_is_compared_in_constant_time(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison is hmac's, which is given both texts whole."""
    seen = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: seen.append((a, b)) or False)
    assert not listening.endpoint.may("Bearer x")
    assert seen == [(b"Bearer x", f"Bearer {listening.endpoint.token}".encode())]


@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=pytest.mark.long)])
def test_malformed_requests_change_nothing(listening: Listening, count: int) -> None:
    """Noise, cut and huge requests, nested JSON, wrong types, with the right token and without."""
    rng, good = random.Random(count), f"Bearer {listening.endpoint.token}"
    bodies = [
        b"", b"{", b"[]", b"null", b'{"do": 1}', b'{"do": "rm"}', b'{"do": "set"}',
        b'{"do": "set", "values": {"out": "x"}}', b'{"do": "set", "values": {"lr": 1}}',
        b'{"do": "profile", "steps": 1e9}', b'{"do": "profile", "steps": true}',
        b'{"do": "save", "more": 1}', b"[" * 5000, b"\xff\xfe\x00",
    ]  # fmt: skip

    def malformed(n: int) -> bytes:
        token = good if n % 2 else ""
        kind = n % 5
        if kind == 0:
            return rng.randbytes(rng.randrange(1, 400))
        if kind == 1:
            return request(token, rng.choice(bodies))
        if kind == 2:
            return request(token)[: rng.randrange(5, 60)]
        if kind == 3:
            head = f"POST /command HTTP/1.1\r\nAuthorization: {token}\r\n"
            length = rng.choice(["-1", "x", str(MOST_BYTES + 1), "9" * 50, "1e3"])
            return f"{head}Content-Length: {length}\r\n\r\n".encode()
        return b"GET /" + b"a" * rng.randrange(0, 70_000) + b" HTTP/1.1\r\n\r\n"

    for n in range(count):
        assert b" 200 " not in listening.raw(malformed(n))
    assert listening.taken == []
    assert status_of(listening.address) == {"step": 7}


def test_silent_clients_do_not_keep_others_out(listening: Listening) -> None:
    streams = [socket.create_connection(("127.0.0.1", listening.endpoint.port)) for _ in range(8)]
    assert status_of(listening.address) == {"step": 7}
    for stream in streams:
        stream.close()


def test_clients_that_drip_are_cut_off_and_do_not_fill_the_machine_with_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A byte now and then is no silence; of more clients than are heard none has a thread."""
    monkeypatch.setattr("meshwright.runtime.control.endpoint.LONGEST_S", 0.5)
    listening, before = Listening(), threading.active_count()
    streams = [socket.create_connection(("127.0.0.1", listening.endpoint.port)) for _ in range(40)]
    began, most = time.monotonic(), 0
    while time.monotonic() - began < 0.4:
        for stream in streams:
            with suppress(OSError):
                stream.sendall(b"x")
        most = max(most, threading.active_count() - before)
        time.sleep(0.05)
    assert most < 3 * AT_ONCE + 10, "a thread and a timer each of those that are heard, or were"
    assert status_of(listening.address) == {"step": 7}
    assert time.monotonic() - began < 10.0
    for stream in streams:
        stream.close()
    listening.endpoint.close()


def test_commands_from_many_threads_are_all_taken(listening: Listening) -> None:
    send_one = lambda: send(listening.address, Command("save"))  # noqa: E731
    threads = [threading.Thread(target=send_one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(listening.taken) == 12


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("sav", {}), "did you mean save"),
        (("set", {}), "0 options are given"),
        (("set", {"warm_up": "1"}), "did you mean warmup"),
        (("set", {"data": "x"}), "data cannot be set in a live run"),
    ],
)
def test_a_command_that_is_none_is_refused(command: tuple[str, dict], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        Command(*command)


def test_a_value_is_checked_as_the_option_is() -> None:
    options = RunOptions(steps=100)
    assert with_values(options, {"lr": "1e-4", "keep": "5"}).keep == 5
    for values, said in (({"lr": "x"}, "give a number"), ({"lr": "-1"}, "give at least 0"),
                         ({"schedule": "cosin"}, "did you mean cosine"),
                         ({"warmup": "1.5"}, "give a whole number")):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            with_values(options, values)


def test_the_rank_with_the_most_work_is_the_straggler() -> None:
    even = [RankTimes(n, "a", 100.0 + n, 5.0) for n in range(4)]
    assert straggler_lines(even)[0].startswith("no straggler: rank 3")
    slow = [*even[:3], RankTimes(3, "node-2", 150.0, 1.0)]
    assert straggler_lines(slow)[0].startswith("rank 3 on node-2 is the straggler: 150.0 ms")


def test_nobody_else_ever_reads_the_address(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_address(tmp_path, Address("here", 1, "token", "", 1))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "control.json").stat().st_mode) == 0o600


def test_no_live_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["control", "save", str(tmp_path)]) == 2
    assert "holds no live run" in capsys.readouterr().err


def test_a_thread_that_cannot_start_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = Listening()
    right, refused = threading.Thread.start, 3 * AT_ONCE

    def start(thread: threading.Thread) -> None:
        nonlocal refused
        if "process_request_thread" in thread.name and refused:
            refused -= 1
            raise RuntimeError("can't start new thread")
        right(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(3 * AT_ONCE):
        socket.create_connection(("127.0.0.1", listening.endpoint.port)).close()
    until = time.monotonic() + 10.0
    while refused and time.monotonic() < until:
        time.sleep(0.01)
    assert not refused
    assert status_of(listening.address) == {"step": 7}
