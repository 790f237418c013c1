"""Ranks of programs that tests run in this process, forked from one that has imported torch.

An import takes a second and a half of every rank. Tests of signals and of deaths start a launcher
of their own, whose ranks are fresh processes as users have them.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import IO, Any

_LONGEST = 1 << 20  # bytes of a message
# What our launcher starts ranks with blocked.
_STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class WarmRank:
    """A forked rank, as far as a launcher asks a subprocess.Popen."""

    def __init__(self, forks: "Forks", pid: int) -> None:
        self.forks, self.pid = forks, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.forks.ended(self.pid, 0.0)
        return self.returncode

    def wait(self) -> int:
        while self.returncode is None:
            self.returncode = self.forks.ended(self.pid, 1.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """The process that forks ranks, started when one is first asked for; it ends with this one."""

    def __init__(self) -> None:
        self._ours: socket.socket | None = None
        self._codes: dict[int, int] = {}

    def start(
        self, words: list[str], folder: Path, environment: dict[str, str], out: int, errors: IO
    ) -> WarmRank:
        """Start a rank as subprocess.Popen does. words: the interpreter, a file, its arguments."""
        if self._ours is None:
            self._ours = _served()
        task = {"words": words[1:], "folder": str(folder.resolve()), "environment": environment}
        with open(os.devnull, "w") as nowhere:
            streams = [nowhere.fileno() if out == subprocess.DEVNULL else out, errors.fileno()]
            socket.send_fds(self._ours, [json.dumps(task).encode()], streams)
        while True:
            if "started" in (said := self._read()):
                return WarmRank(self, said["started"])

    def ended(self, pid: int, wait_s: float) -> int | None:
        """Return the exit code of a rank, None where it runs after so many seconds."""
        assert self._ours is not None
        while pid not in self._codes and select.select([self._ours], [], [], wait_s)[0]:
            self._read()
        return self._codes.pop(pid, None)

    def _read(self) -> dict[str, Any]:
        assert self._ours is not None
        message = self._ours.recv(_LONGEST)
        if not message:
            raise RuntimeError(f"the process that forks ranks ended; {len(self._codes)} codes left")
        said = json.loads(message)
        if "ended" in said:
            self._codes[said["ended"]] = os.waitstatus_to_exitcode(said["status"])
        return said


def _served() -> socket.socket:
    """Start the process that forks, and return our end of its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        env=environment,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    return ours


def _serve(theirs: socket.socket) -> None:
    """Fork a rank a message, and tell of each that ended, until nobody listens."""
    import numpy  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch.distributed
    import torch.export  # noqa: F401

    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([theirs, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _tell_ended(theirs)
        if theirs in ready:
            message, streams, _, _ = socket.recv_fds(theirs, _LONGEST, 2)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                theirs.close()
                _be_rank(json.loads(message), streams)
            for stream in streams:
                os.close(stream)
            theirs.send(json.dumps({"started": pid}).encode())


def _tell_ended(theirs: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        theirs.send(json.dumps({"ended": pid, "status": status}).encode())


def _be_rank(task: dict[str, Any], streams: list[int]) -> None:
    """Run the file as a fresh interpreter would; never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(task["folder"])
    os.environ.clear()
    # Its launcher, whose end it watches for, is the process that forked it.
    os.environ.update(task["environment"] | {"MESHWRIGHT_LAUNCHER": str(os.getppid())})
    sys.argv, sys.path[0] = task["words"], task["folder"]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    code = 1
    try:
        runpy.run_path(task["words"][0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
