"""Start a program's ranks on this machine, one process each, and answer for them."""

import math
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import IO, NamedTuple

from ..checkpoint.manifest import complete
from ..data import absolute
from ..given import check_given
from ..metrics.trackers import check_tracker
from ..own_code import IMPORT_PATH
from ..training.interrupted import RunInterrupted, record_interrupted
from ..training.options import STOPPED, RunOptions, flag, run_options
from ..training.past_run import COMMAND, FOLDER
from ..training.program import ProgramError
from ..training.run_folder import check_free
from .heartbeat import read_beat
from .readiness import check_machine, read_needs
from .watchdog import HUNG, LAUNCHER, Sightings, stands_still, start_limit_s

# They ask a run to save and stop. Until a rank can, they wait (see StopSignal).
STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# After the first rank died the others have so long to say what they know of it.
_GRACE_S = 2.0
_LOOK_EVERY_S = 1.0
# A second Ctrl-C within so long is the first, sent twice.
_SAME_S = 1.0
# Our own standard error by number: what ranks print is progress, its file is what they fail of.
_STDERR = 2
# What a signal that nobody sent on purpose means most often.
_HINTS: dict[int, str] = {
    signal.SIGKILL: " (out of memory?)",
    signal.SIGBUS: " (a memory-mapped file, of data or weights, got shorter while it was read, or "
    "its disk failed, or /dev/shm is full)",
}


@dataclass
class _Rank:
    """A rank's process; its standard error goes to a file, read when it fails."""

    number: int
    process: subprocess.Popen
    stderr: IO[str]

    def said(self) -> list[str]:
        self.stderr.seek(0)
        return self.stderr.read().splitlines()


class Ended(NamedTuple):
    """The end of a program. code: 0 done, 2 refused input, HUNG no progress, STOPPED saved after a
    signal, 1 a rank died. asked: whether a signal asked for a stop. said: what ranks, and the
    launcher, said of what went wrong."""

    code: int
    asked: bool = False
    said: str = ""


def start_with_restarts(
    folder: Path,
    options: dict[str, object],
    restarts: int,
    *,
    say: Callable[[str], None],
    port: int = 0,
    quiet: bool = False,
) -> Ended:
    """Run `main.py` in `folder` once a rank, and again when a rank died or hung.

    That is from its newest good checkpoint, at most `restarts` times; a refusal or a stop asked for
    by a signal is final. A run that saved nothing yet starts as it did before: from the checkpoint
    or the weights that `options` name. SIGTERM, SIGUSR1 and the first Ctrl-C go on to the ranks.

    options: RunOptions by field name. port: of the rendezvous, 0 takes a free one. quiet: without
    what ranks print, which goes to standard error. Raises ProgramError for a folder without a
    program, a checkpoint that is not there, or a port that cannot be had.
    """
    out = _out(options)
    before = _saved(out)
    for attempt in range(restarts + 1):
        ended = _start_once(folder, options, port, quiet)
        if ended.code not in (1, HUNG) or ended.asked or attempt == restarts:
            break
        _say(ended.said)
        found = "from the newest good checkpoint"
        if _saved(out) - before:
            options = {**options, "resume": "auto", "fresh": False}
        elif options.get("resume") != "auto":
            found = "as it began: nothing was saved since"
        say(f"restart {attempt + 1} of {restarts}, {found}")
    return ended


def _out(options: dict[str, object]) -> Path:
    return Path(str(options.get("out", "run")))


def _saved(out: Path) -> set[tuple[str, int]]:
    """Checkpoints of a run's folder, each with the time of its making: names come again."""
    return {(p.name, p.stat().st_mtime_ns) for p in complete(out / "checkpoints")}


def _start_once(folder: Path, options: dict[str, object], port: int, quiet: bool) -> Ended:
    check_given(folder, options)
    _check_port(port)
    layout, out_folder = folder / "layout.py", _out(options)
    check_free(out_folder)
    check_tracker(str(options.get("track") or "none"))
    count = num_ranks(layout.read_text())
    _check_machine(folder, options, count)
    words = [sys.executable, "main.py", *option_words(options)]
    port = _port(port) if count > 1 else 0
    beats, new = out_folder / "beats", not out_folder.exists()
    shutil.rmtree(beats, ignore_errors=True)  # where an earlier attempt stood
    sightings, limit_s = Sightings(beats, range(count)), start_limit_s(_hang_after_s(options))
    with _told_of(out_folder), tempfile.TemporaryDirectory() as errors, _forwarding() as forwarding:
        out = subprocess.DEVNULL if quiet else _STDERR
        for n in range(count):
            environment = environment_of(n, count, port)
            forwarding.ranks.append(_start(folder, words, environment, out, Path(errors) / str(n)))
        forwarding.listen()
        silent = partial(_silent_rank, sightings, time.monotonic(), limit_s)
        failed, hung = _wait(forwarding.ranks, silent)
        code, said = (HUNG, hung) if hung else _report(failed, forwarding.ranks, beats)
    if code == 2 and new:
        _leave_nothing(out_folder)
    return Ended(code, forwarding.asked, said)


def _check_machine(folder: Path, options: dict[str, object], ranks: int) -> None:
    """Raise MachineError before any rank is started. By --anyway the ranks say what is amiss."""
    needs, given = read_needs(folder), run_options(options)
    if needs is not None and not given.anyway:
        check_machine(needs, given, ranks, _say)


def _hang_after_s(options: dict[str, object]) -> float:
    given = options.get("hang_after")
    return RunOptions.hang_after if given is None else max(float(str(given)), 0.0)


def _leave_nothing(out: Path) -> None:
    """Of a run that was refused: its marks, and the folder made for them if it holds no more."""
    shutil.rmtree(out / "beats", ignore_errors=True)
    if {path.name for path in out.glob("*")} == {"lock"}:
        (out / "lock").unlink()
    with suppress(OSError):
        out.rmdir()


def _start(
    folder: Path, words: list[str], environment: dict[str, str], out: int, errors: Path
) -> _Rank:
    stderr = open(errors, "w+", encoding="utf-8", errors="replace")
    process = subprocess.Popen(words, cwd=folder, env=environment, stdout=out, stderr=stderr)
    return _Rank(int(environment["RANK"]), process, stderr)


def environment_of(rank: int, world: int, port: int) -> dict[str, str]:
    """Return the environment of a rank, with what torch's env:// rendezvous reads."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    # In Python's own order: first the folder of the script that runs, or what stands in its place.
    searched = (*sys.path[:1], environment.pop("PYTHONPATH", ""), os.getcwd())
    environment[IMPORT_PATH] = os.pathsep.join(filter(None, searched))
    environment.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    environment[LAUNCHER] = str(os.getpid())
    environment.update({COMMAND: _command(), FOLDER: os.getcwd()})
    return environment


def _command() -> str:
    """The user's command line; `python -m` gives the path of the file in place of its name."""
    name = Path(sys.argv[0]).name
    return shlex.join(["meshwright" if name == "cli.py" else name, *sys.argv[1:]])


class _Forwarding:
    """Signals that ask for a stop reach every rank, Ctrl-C once. asked: whether one came.

    A terminal and what stands between it and us, such as `timeout`, may each send the same Ctrl-C.
    """

    def __init__(self) -> None:
        self.ranks: list[_Rank] = []
        self.asked = False
        self._interrupted_at = -math.inf
        # The ranks inherit this: a signal that comes while they import torch is not lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        self._before = {number: signal.signal(number, self._forward) for number in STOPS}

    def listen(self) -> None:
        """All ranks are started."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def _forward(self, number: int, _: object) -> None:
        self.asked = True
        if number == signal.SIGINT:
            if time.monotonic() - self._interrupted_at < _SAME_S:
                return
            if self._interrupted_at > -math.inf:
                raise KeyboardInterrupt
            self._interrupted_at = time.monotonic()
            print(
                "stopping within two steps, saving; Ctrl-C again ends the run at once, unsaved",
                file=sys.stderr,
            )
            number = signal.SIGTERM
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.send_signal(number)

    def end(self) -> None:
        """No rank outlives it."""
        self.listen()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for rank in self.ranks:
            rank.process.kill()
            rank.process.wait()


@contextmanager
def _forwarding() -> Iterator[_Forwarding]:
    forwarding = _Forwarding()
    try:
        yield forwarding
    finally:
        forwarding.end()


@contextmanager
def _told_of(out: Path) -> Iterator[None]:
    """Say what is lost where a second Ctrl-C ended the ranks, in the run's folder and to the user.

    Raises RunInterrupted then.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterrupted(record_interrupted(out, _command())) from None


def _wait(ranks: list[_Rank], silent: Callable[[list[_Rank]], str]) -> tuple[list[_Rank], str]:
    """Until all ended, or one failed and the others had their time; the failed in order.

    Or until `silent` has something to say of those that run, which is returned, too.
    """
    failed: list[_Rank] = []
    deadline, look_at = float("inf"), 0.0
    while time.monotonic() < deadline:
        codes = [rank.process.poll() for rank in ranks]
        for rank, code in zip(ranks, codes, strict=True):
            if code not in (None, 0, STOPPED) and rank not in failed:
                failed.append(rank)
                deadline = min(deadline, time.monotonic() + _GRACE_S)
        if None not in codes:
            break
        if not failed and time.monotonic() > look_at:
            look_at = time.monotonic() + _LOOK_EVERY_S
            said = silent([r for r, code in zip(ranks, codes, strict=True) if code is None])
            if said:
                return failed, said
        time.sleep(0.05)
    return failed, ""


def _silent_rank(sightings: Sightings, since_s: float, limit_s: float, ranks: list[_Rank]) -> str:
    """What to say of a rank that gave no sign of life for so long: its own watch stands, too, or
    never began, and there may be no other rank to notice."""
    sightings.look()
    for rank in ranks:
        seen = sightings.of.get(rank.number)
        if time.monotonic() - (seen.seen_s if seen else since_s) > limit_s:
            beat = seen.beat if seen else None
            return stands_still(limit_s, rank.number, beat, socket.gethostname())
    return ""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _report(failed: list[_Rank], ranks: list[_Rank], beats: Path) -> tuple[int, str]:
    """The exit code, and what to say: a refusal's own message alone; of a death the rank, where it
    stood, and what it said."""
    if not failed:
        return max(rank.process.returncode for rank in ranks), ""
    for rank in sorted(failed, key=lambda r: r.number):
        message = _message(rank.said())
        if message and rank.process.returncode in (2, HUNG):
            return rank.process.returncode, message
    # A rank that was killed is the cause; one that raised may only have lost its peer.
    rank = min(failed, key=lambda r: r.process.returncode >= 0)
    beat = read_beat(beats, rank.number)
    where = f"{beat.host}, at {beat}" if beat else socket.gethostname()
    death = _death(rank, bool(_saved(beats.parent)))
    said = [*rank.said(), f"error: rank {rank.number} on {where}: {death}"]
    return 1, "\n".join(said)


def _message(said: list[str]) -> str:
    """The first "error: " line with the indented ones that go on behind it; "" without one."""
    start = next((n for n, line in enumerate(said) if line.startswith("error: ")), len(said))
    more = takewhile(lambda line: line.startswith("  "), said[start + 1 :])
    return "\n".join([*said[start : start + 1], *more])


def _death(rank: _Rank, saved: bool) -> str:
    code = rank.process.returncode
    how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    way = "go on with --resume auto" if saved else "it had saved nothing"
    return f"{how}{_HINTS.get(-code, '')}; the run ended, {way}"


def num_ranks(layout: str) -> int:
    """Product of the mesh axes in the text of layout.py; the file is not run."""
    import ast

    for node in ast.walk(ast.parse(layout)):
        if isinstance(node, ast.keyword) and node.arg == "mesh":
            total = 1
            for size in ast.literal_eval(node.value).values():
                total *= size
            return total
    raise ProgramError(
        f"layout.py names no mesh in {len(layout)} characters; write the program again with compile"
    )


def _check_port(port: int) -> None:
    if not 0 <= port < 2**16:
        raise ProgramError(f"--port {port}: give 0 to {2**16 - 1}, 0 takes a free one")


def _port(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ProgramError(
                f"port {port} cannot be had ({error.strerror}); give another that is not in use, "
                "or leave --port out to take a free one"
            ) from None
        return probe.getsockname()[1]


def option_words(options: dict[str, object]) -> list[str]:
    """Return options as command-line words; paths are absolute, as a program runs in its folder."""
    arguments = []
    for name, value in options.items():
        if value is True:
            arguments.append(flag(name))
        elif isinstance(value, tuple):
            arguments += [word for item in value for word in (flag(name), str(item))]
        elif value is not False and value is not None:
            arguments += [flag(name), _absolute(name, str(value))]
    return arguments


def _absolute(name: str, value: str) -> str:
    folder = name in ("resume", "weights") and value not in ("", "auto")
    if name == "out" or folder:
        return str(Path(value).resolve())
    return absolute(value) if name in ("data", "eval_data") else value
