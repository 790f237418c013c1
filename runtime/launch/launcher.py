"""Start a program's ranks on this machine, one process each, and answer for them."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..given import check_given
from ..metrics.trackers import check_tracker
from ..training.interrupted import RunInterrupted, record_interrupted
from ..training.options import RunOptions, run_options
from ..training.past_run import launch_of, live_values
from ..training.program import ProgramError
from ..training.run_folder import check_free
from . import ranks
from .forwarding import forwarding_signals
from .ranks import Place, command_line, environment_of, report, saved_in, silent_rank, wait_for
from .readiness import check_machine, read_needs
from .watchdog import HUNG, Sightings, start_limit_s
from .words import option_words

# Our own standard error by number: what ranks print is progress, its file is what they fail of.
_STDERR = 2


class Ended(NamedTuple):
    """The end of a program. code: 0 done, 2 refused input, HUNG no progress, STOPPED saved after a
    signal, 1 a rank died. asked: whether a signal asked for a stop. said: what ranks, and the
    launcher, said of what went wrong. killed: a signal that nobody sent on purpose ended a rank."""

    code: int
    asked: bool = False
    said: str = ""
    killed: bool = False


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
    before = saved_in(out)
    for attempt in range(restarts + 1):
        ended = _start_once(folder, options, port, quiet)
        if ended.code not in (1, HUNG) or ended.asked or attempt == restarts:
            break
        _say(ended.said)
        options = {**options, **live_values(out, launch_of(os.getpid()))}
        found = "from the newest good checkpoint"
        if saved_in(out) - before:
            options = {**options, "resume": "auto", "fresh": False}
        elif options.get("resume") != "auto":
            found = "as it began: nothing was saved since"
        say(f"restart {attempt + 1} of {restarts}, {found}")
    return ended


def _out(options: dict[str, object]) -> Path:
    return Path(str(options.get("out", "run")))


def _start_once(folder: Path, options: dict[str, object], port: int, quiet: bool) -> Ended:
    check_given(folder, options)
    _check_port(port)
    layout, out_folder = folder / "layout.py", _out(options)
    check_free(out_folder)
    check_tracker(str(options.get("track") or "none"))
    count = num_ranks(layout.read_text())
    check_here(folder, options, count)
    place = Place(0, count, count, port=free_port(port) if count > 1 else 0)
    beats, new = out_folder / "beats", not out_folder.exists()
    shutil.rmtree(beats, ignore_errors=True)  # where an earlier attempt stood
    with _told_of(out_folder), tempfile.TemporaryDirectory() as errors:
        ended = run_ranks(folder, options, place, Path(errors), quiet=quiet)
    if ended.code == 2 and new:
        _leave_nothing(out_folder)
    return ended


def _nothing_else() -> str:
    return ""


def run_ranks(
    folder: Path,
    options: dict[str, object],
    place: Place,
    errors: Path,
    *,
    quiet: bool = False,
    elsewhere: Callable[[], str] = _nothing_else,
) -> Ended:
    """Run the ranks of a place to their end; signals that ask for a stop reach them.

    errors: a folder, in which each rank has a file of its standard error. elsewhere: says what
    happened on another machine that ends the ranks here, "" for nothing.
    """
    words = [sys.executable, "main.py", *option_words(options)]
    beats = _out(options) / "beats"
    sightings, limit_s = Sightings(beats, place.ranks), start_limit_s(_hang_after_s(options))
    with forwarding_signals() as forwarding:
        out = subprocess.DEVNULL if quiet else _STDERR
        for n in place.ranks:
            environment, file = environment_of(n, place), errors / rank_file(n)
            forwarding.ranks.append(ranks.start_rank(folder, words, environment, out, file))
        forwarding.listen()
        silent = partial(silent_rank, sightings, time.monotonic(), limit_s)
        failed, hung = wait_for(forwarding.ranks, lambda here: elsewhere() or silent(here))
        code, said = (HUNG, hung) if hung else report(failed, forwarding.ranks, beats)
    return Ended(code, forwarding.asked, said, any(rank.process.returncode < 0 for rank in failed))


def rank_file(rank: int) -> str:
    """Return the name of the file of a rank's standard error."""
    return f"rank_{rank:05d}.err"


def check_here(folder: Path, options: dict[str, object], count: int) -> None:
    """Raise MachineError before any rank is started. By --anyway the ranks say what is amiss."""
    needs, given = read_needs(folder), run_options(options)
    if needs is not None and not given.anyway:
        check_machine(needs, given, count, _say)


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


@contextmanager
def _told_of(out: Path) -> Iterator[None]:
    """Say what is lost where a second Ctrl-C ended the ranks, in the run's folder and to the user.

    Raises RunInterrupted then.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterrupted(record_interrupted(out, command_line())) from None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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


def free_port(port: int) -> int:
    """Return a port of this machine that is free: the one asked for, any for 0.

    Raises ProgramError where that one is taken.
    """
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
