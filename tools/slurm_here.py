"""A real Slurm on this machine: one controller, and node daemons that each believe to be a machine.

    python tools/slurm_here.py start [--nodes 4]     as root; needs slurm-wlm and munge
    python tools/slurm_here.py stop

Everything lies in FOLDER; `export SLURM_CONF=FOLDER/slurm.conf` gives any shell its commands.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

FOLDER = Path(os.environ.get("MESHWRIGHT_SLURM", "/tmp/meshwright-slurm"))
CONF = FOLDER / "slurm.conf"
_READY_S = 30.0
_DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")

_TEXT = """ClusterName=meshwright
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=10
KillWait=30
MinJobAge=600
JobRequeue=1
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName=node[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 \\
RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return what this machine lacks for a Slurm of its own, "" for nothing."""
    if os.geteuid() != 0:
        return f"root, this is user {os.geteuid()}"
    lacks = [name for name in _DAEMONS if shutil.which(name) is None]
    return f"the commands {', '.join(lacks)} (apt-get install slurm-wlm munge)" if lacks else ""


def is_up() -> bool:
    """Tell whether a controller answers, and all its nodes with it."""
    if not CONF.is_file():
        return False
    environment = {**os.environ, "SLURM_CONF": str(CONF)}
    try:
        done = subprocess.run(
            ["sinfo", "--noheader", "-N", "-o", "%T"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    states = done.stdout.split()
    return done.returncode == 0 and bool(states) and set(states) <= {"idle", "mixed", "allocated"}


def start(nodes: int, port: int = 27100) -> None:
    """Start munge, the controller and the node daemons, and wait until all answer."""
    stop()
    (FOLDER / "state").mkdir(parents=True)
    host = socket.gethostname()
    text = _TEXT.format(
        folder=FOLDER, host=host, port=port, nodes=nodes, first=port + 101, last=port + 100 + nodes
    )
    CONF.write_text(text)
    _start_munge()
    environment = {**os.environ, "SLURM_CONF": str(CONF)}
    subprocess.run(["slurmctld"], env=environment, check=True)
    for number in range(1, nodes + 1):
        start_node(f"node{number}")
    deadline = time.monotonic() + _READY_S
    while not is_up():
        if time.monotonic() > deadline:
            raise SystemExit(f"Slurm is not up after {_READY_S:g} s; see {FOLDER}/slurmctld.log")
        time.sleep(0.2)


def _start_munge() -> None:
    """Start munge with a key and a socket of its own."""
    key = FOLDER / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    FOLDER.chmod(0o755)
    names = {name: str(FOLDER / f"munge.{name}") for name in ("socket", "log", "pid", "seed")}
    words = [
        "munged",
        "--force",
        f"--key-file={key}",
        f"--socket={names['socket']}",
        f"--log-file={names['log']}",
        f"--pid-file={names['pid']}",
        f"--seed-file={names['seed']}",
    ]
    subprocess.run(words, check=True)


def start_node(name: str) -> None:
    """Start the daemon of a node."""
    environment = {**os.environ, "SLURM_CONF": str(CONF)}
    subprocess.run(["slurmd", "-N", name], env=environment, check=True)


def kill_node(name: str) -> None:
    """End all that runs on a node at once, as a loss of power does: nothing is left for a moment
    that could tell of the end of the rest, as srun and what watches over a step do."""
    found = [*_daemon(name), *_processes(name)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _daemon(name: str) -> list[int]:
    path = FOLDER / f"slurmd.{name}.pid"
    return [int(path.read_text())] if path.is_file() else []


def _processes(name: str) -> list[int]:
    """Return what the daemon of a node started: first the processes of Slurm that watch over a
    step, then those that run in it."""
    wanted = {f"SLURM_CONF={CONF}".encode(), f"SLURMD_NODENAME={name}".encode()}
    inside = [pid for pid in _pids() if wanted <= set(_file(pid, "environ").split(b"\0"))]
    above = {_parent(pid) for pid in inside}
    watching = [pid for pid in above if _file(pid, "cmdline").startswith(b"slurmstepd")]
    return watching + [pid for pid in inside if pid not in watching]


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _file(pid: int, name: str) -> bytes:
    """Return a file of a process; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    fields = _file(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def stop() -> None:
    """End all daemons of the folder, and remove it."""
    for path in FOLDER.glob("*.pid") if FOLDER.is_dir() else ():
        try:
            os.kill(int(path.read_text()), signal.SIGKILL)
        except (ProcessLookupError, ValueError):
            continue
    for pid in _pids():
        title, environment = _file(pid, "cmdline"), _file(pid, "environ")
        if title.startswith(b"slurmstepd") and str(CONF).encode() in environment:
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(FOLDER, ignore_errors=True)


def main() -> None:
    """Start or stop it, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("do", choices=("start", "stop"))
    parser.add_argument("--nodes", type=int, default=4)
    given = parser.parse_args()
    if lacks := missing():
        raise SystemExit(f"no Slurm here: this machine lacks {lacks}")
    if given.do == "start":
        start(given.nodes)
        print(f"Slurm with {given.nodes} nodes is up: export SLURM_CONF={CONF}")
    else:
        stop()


if __name__ == "__main__":
    sys.exit(main())
