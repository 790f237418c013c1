"""Start a program's ranks on this machine, one process each, through torchrun."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from .program import ProgramError

STOPPED = 75  # a run that a signal ended after saving (launch.py)


def start_program(folder: Path, options: dict[str, object], port: int = 0) -> int:
    """Run `main.py` in `folder`; returns the exit code, 2 when the program refused its input.

    options: RunOptions by field name. port: of the rendezvous, 0 takes a free one.
    Raises ProgramError for a folder without a program or a port in use.
    """
    layout = folder / "layout.py"
    if not (folder / "main.py").is_file() or not layout.is_file():
        raise ProgramError(f"{folder} holds no program (main.py, layout.py); write it with compile")
    ranks = num_ranks(layout.read_text())
    command = [sys.executable, "main.py", *_arguments(options)]
    if ranks > 1:
        address = ["--master-addr", "127.0.0.1", "--master-port", str(_port(port))]
        command[1:2] = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(ranks),
            *address,
            "main.py",
        ]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    environment.pop("PYTHONPATH", None)
    finished = subprocess.run(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )
    return _report(finished)


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


def _port(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise ProgramError(
                f"port {port} is in use; give another, or leave --port out to take a free one"
            ) from None
        return probe.getsockname()[1]


def _arguments(options: dict[str, object]) -> list[str]:
    """Options as command-line words; paths made absolute, as the program runs in its own folder."""
    arguments = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        elif value is not False and value is not None:
            arguments += [flag, _absolute(name, str(value))]
    return arguments


def _absolute(name: str, value: str) -> str:
    folder = name in ("resume", "weights") and value not in ("", "auto")
    if name == "out" or folder:
        return str(Path(value).resolve())
    if name == "data" and value.startswith("file:"):
        return f"file:{Path(value.removeprefix('file:')).resolve()}"
    return value


def _report(finished: subprocess.CompletedProcess) -> int:
    """A refusal's own message alone; everything else as it came."""
    code = finished.returncode
    if code == 0:
        return 0
    messages = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    if messages:
        print(messages[0], file=sys.stderr)
        return 2
    if f"exitcode  : {STOPPED}" in finished.stderr or code == STOPPED:
        return STOPPED
    print(finished.stderr, file=sys.stderr)
    return code
