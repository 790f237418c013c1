"""Faults at random moments, each followed by a resumed run that must equal an undisturbed one.

    python benchmarks/faults.py [--count 60] [--seed 0] [--only PATTERN] [--workdir DIR]

Two data-parallel CPU ranks train a tiny model for STEPS steps with a checkpoint every SAVE_EVERY. A
fault is SIGKILL or SIGSTOP of a random rank in forward, backward, optimizer step, checkpoint write
or data read, SIGKILL of the launcher, whose ranks must end, too, a disk that is full (a limit on
file size stands for it), or flipped bits in the newest checkpoint or in its manifest. Then the run
goes on with `--resume auto`; its losses must be the undisturbed run's, bit for bit, each step once.
With two tiers of checkpoints the durable ones are rare and the fast ones are struck. Requests that
the endpoint of a live run must refuse may not disturb it. Under Slurm (faults_slurm.py; left out
where none is up) the job must end by itself. `--only "two tiers"` takes some of the kinds.
Prints one row a fault, then a table by kind in Markdown: messages that named the rank (named),
seconds from the fault to the end of the run and of all its ranks (detect), and from the restart to
its first step (resume).
"""

import argparse
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faults_control
import faults_slurm

from meshwright.runtime.checkpoint.fast import host_folder
from meshwright.runtime.checkpoint.manifest import complete
from meshwright.runtime.launch.heartbeat import read_beat

STEPS, SAVE_EVERY, HANG_S = 48, 4, 3.0
WORLD = 2
CLI = [sys.executable, "-m", "meshwright.cli"]
PHASES = {"forward": "F", "backward": "B", "optimizer step": "STEP", "data read": "DATA"}
KINDS = tuple(
    f"{name} in {phase}"
    for phase in (*PHASES, "checkpoint write")
    for name in ("SIGKILL", "SIGSTOP")
) + (
    "SIGKILL of the launcher",
    "disk full",
    "flipped bytes in the newest checkpoint",
    "flipped byte in the newest checkpoint's manifest",
)
FAST_KINDS = tuple(
    f"two tiers: {name}"
    for name in (
        "SIGKILL in forward",
        "SIGKILL in checkpoint write",
        "flipped bytes in the newest fast checkpoint",
        "fast folder gone",
        "fast disk takes nothing",
    )
)
ALL_KINDS = KINDS + FAST_KINDS + faults_control.KINDS + faults_slurm.KINDS
# With two tiers.
RARE, OFTEN = 12, 2
# Sums of float32 in another order.
REPLANNED = 2e-5
# By when a run must have ended, all its ranks with it.
END_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """detect_s: from the fault to the run's end; resume_s: from the restart to its first step.

    named: whether the message named the rank that was struck, None where none was.
    """

    kind: str
    code: int
    detect_s: float
    resume_s: float
    equal: bool
    named: bool | None
    said: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds whose name this pattern is found in")
    parser.add_argument("--workdir", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = arguments.workdir or Path(folder)
        program = _program(work / "here", f"cpu:{WORLD}")
        reference = _losses(_finished(program, work / "reference"))
        rng = random.Random(arguments.seed)
        chosen = [kind for kind in ALL_KINDS if re.search(arguments.only, kind)]
        if lacks := faults_slurm.missing():
            chosen = [kind for kind in chosen if kind not in faults_slurm.KINDS]
            print(f"without the kinds under Slurm: this machine lacks {lacks}")
        kinds = [chosen[n % len(chosen)] for n in range(arguments.count)]
        apart = program
        if set(kinds) & set(faults_slurm.KINDS):  # the same ranks, a node each
            apart = _program(work / "apart", f"cpu:1x{WORLD}")
        outcomes = []
        for number, kind in enumerate(kinds):
            where = apart if kind in faults_slurm.KINDS else program
            outcome = _does(kind)(kind, where, work / f"fault_{number:03d}", rng, reference)
            outcomes.append(outcome)
            print(
                f"{number + 1:3d}/{len(kinds)} {kind}: exit {outcome.code} after "
                f"{outcome.detect_s:.1f} s, resumed in {outcome.resume_s:.1f} s, "
                f"{'equal' if outcome.equal else 'NOT EQUAL'}"
                f"{', ANOTHER RANK NAMED' if outcome.named is False else ''}; {outcome.said}",
                flush=True,
            )
    print(_table(outcomes))
    sys.exit(not all(o.equal and o.named is not False for o in outcomes))


def _program(work: Path, cluster: str) -> Path:
    work.mkdir(parents=True, exist_ok=True)
    plan, program = work / "plan.txt", work / "program"
    sizes = ["--cluster", cluster, "--seq", "64", "--global-batch", "8"]
    pins = ["--pin", f"dp={WORLD}", "--pin", "zero=2", "--pin", "micro_batch=2"]
    subprocess.run([*CLI, "plan", "tiny", *sizes, *pins, "-o", plan], check=True)
    subprocess.run([*CLI, "compile", plan, "-o", program], check=True)
    return program


def _command(program: Path, run: Path, hang_s: float, kind: str = "") -> list[str]:
    options = {"data": "demo", "steps": STEPS, "save-every": SAVE_EVERY, "hang-after": hang_s}
    options |= {"eval-batches": 1, "schedule": "constant", "out": run, "resume": "auto"}
    if kind in FAST_KINDS:
        options |= {"save-every": RARE, "fast-dir": _fast_dir(run), "fast-every": OFTEN}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [*CLI, "run", str(program), *words, "--no-compile"]


def _fast_dir(run: Path) -> Path:
    return run.with_name(f"{run.name}_fast")


def _finished(program: Path, run: Path) -> Path:
    subprocess.run(_command(program, run, 60.0), check=True, stdout=subprocess.DEVNULL)
    return run


def _losses(run: Path) -> list[tuple[int, float]]:
    """By step; a line that is being written is left out."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [(row["step"], row["loss"]) for row in rows if "loss" in row]


Struck = tuple[float, list[int], int | None]  # the moment, the ranks' processes, the rank struck


def _does(kind: str) -> Callable[..., Outcome]:
    """What carries a kind of fault out."""
    if kind in faults_slurm.KINDS:
        return _under_slurm
    return _undisturbed if kind in UNDISTURBED else fault


# A run must not even notice these.
UNDISTURBED = (*faults_control.KINDS, "two tiers: fast disk takes nothing")


def _undisturbed(
    kind: str, program: Path, run: Path, rng: random.Random, reference: list[tuple[int, float]]
) -> Outcome:
    """What does not disturb a run: it ends by itself, as the other."""
    if kind in FAST_KINDS:
        host_folder(_fast_dir(run), run).parent.mkdir(parents=True)
        host_folder(_fast_dir(run), run).write_text("a file in the place of a folder")
    process = _started(program, run, kind)
    obeyed = 0
    if kind in faults_control.KINDS and _when(lambda: len(_losses(run)) > 1, process):
        obeyed = faults_control.bombard(kind, run, rng)
    said = process.communicate(timeout=300)[1].strip().splitlines()
    equal = process.returncode == 0 and not obeyed and _losses(run) == reference
    return Outcome(kind, process.returncode, 0.0, 0.0, equal, None, f"{obeyed} obeyed; {said[-1]}")


def _under_slurm(
    kind: str, program: Path, run: Path, rng: random.Random, reference: list[tuple[int, float]]
) -> Outcome:
    """A fault of a job, which must end by itself, or stop where policy demands it."""
    case = faults_slurm.case_of(kind)
    options = {"data": "demo", "steps": STEPS, "save_every": SAVE_EVERY, "no_compile": True}
    options |= {"eval_batches": 1, "schedule": "constant", "hang_after": 2 * HANG_S}
    if case.tiers:
        options |= {"save_every": RARE, "fast_dir": str(_fast_dir(run)), "fast_every": OFTEN}
    step = rng.randrange(RARE + 1, STEPS // 2)
    target = faults_slurm.job_file(program.parent, options) if case.planned_anew else program
    given = {} if case.planned_anew else options
    found = faults_slurm.strike(case, target, run, rng, given, step)
    if not found.attempts:
        detect_s, said = found.detect_s, f"{found.state}, without an attempt that told of its end"
        return Outcome(kind, 1, detect_s, found.resume_s, False, None, said)
    last, off = found.attempts[-1], _off(_losses(run), reference, whole=case.again)
    equal = found.met and off <= (REPLANNED if case.planned_anew else 0.0)
    equal = equal and (not case.again or found.state == "COMPLETED")
    failed = {node for attempt in found.attempts for node in attempt.failed}
    named = found.victim in failed if found.victim and len(found.attempts) > 1 else None
    said = f"{len(found.attempts)} attempts; {found.attempts[0].then}"
    said += f"; off by {off:.1e}" if case.planned_anew else ""
    return Outcome(kind, last.code, found.detect_s, found.resume_s, equal, named, said)


def _off(
    found: list[tuple[int, float]], reference: list[tuple[int, float]], *, whole: bool
) -> float:
    """The largest relative difference of a loss; infinite where a step is missing or there twice.

    whole: all steps; else up to the first that differs, of which there must be some.
    """
    if [step for step, _ in found] != list(range(len(found))) or not found:
        return math.inf
    if not whole:
        return 0.0 if found[:RARE] == reference[:RARE] else math.inf
    if len(found) != len(reference):
        return math.inf
    return max(abs(a / b - 1) for (_, a), (_, b) in zip(found, reference, strict=True))


def fault(
    kind: str, program: Path, run: Path, rng: random.Random, reference: list[tuple[int, float]]
) -> Outcome:
    """Start, disturb at a random step past the first checkpoint, wait, resume, compare."""
    while True:  # a run may end before the moment was seen: some last a millisecond
        process = _started(program, run, kind)
        struck = _strike(kind, process, run, rng)
        said = process.communicate(timeout=120)[1].strip().splitlines()
        if struck is not None:
            break
        shutil.rmtree(run)
        shutil.rmtree(_fast_dir(run), ignore_errors=True)
    moment, pids, rank = struck
    orphans = _outlive(pids)
    detect_s = time.monotonic() - moment
    named = None if rank is None else any(f"rank {rank} on " in line for line in said)
    if "flipped" in kind:
        _flip(_tier(kind, run), rng, "manifest.json" if kind.endswith("manifest") else "*.safet*")
    if kind.endswith("gone"):
        shutil.rmtree(_fast_dir(run))
    started = time.monotonic()
    again = subprocess.Popen(
        _command(program, run, 60.0, kind),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert again.stdout is not None
    for line in again.stdout:
        if line.startswith("step "):
            break
    resume_s = time.monotonic() - started
    rest = again.communicate(timeout=300)[0].splitlines()
    equal = again.returncode == 0 and _losses(run) == reference and not orphans
    if not equal:
        end = rest[-1] if rest else "no word"
        said.append(
            f"{said[-1] if said else ''}; {len(orphans)} ranks ran on; resumed: exit "
            f"{again.returncode}, {end}"
        )
    last = said[-1] if said else ""
    return Outcome(kind, process.returncode, detect_s, resume_s, equal, named, last)


def _tier(kind: str, run: Path) -> Path:
    """The folder of the checkpoints that a kind strikes."""
    fast = kind in FAST_KINDS
    return host_folder(_fast_dir(run), run) if fast else run / "checkpoints"


def _started(program: Path, run: Path, kind: str) -> subprocess.Popen:
    full = kind == "disk full"
    return subprocess.Popen(
        _command(program, run, HANG_S, kind),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_little_disk if full else None,
    )


def _strike(kind: str, process: subprocess.Popen, run: Path, rng: random.Random) -> Struck | None:
    """Do to the run what the kind says, when it is where the kind says; None if it ended before."""
    step, rank = rng.randrange(SAVE_EVERY + 1, STEPS // 2), rng.randrange(WORLD)
    number = signal.SIGSTOP if kind.startswith("SIGSTOP") else signal.SIGKILL
    if kind == "disk full":
        seen = _when(lambda: _writes(run / "checkpoints"), process)
        return (time.monotonic(), _rank_pids(process), None) if seen else None
    if not _when(lambda: len(_losses(run)) > step, process):
        return None
    pids = _rank_pids(process)
    if len(pids) < WORLD or not _when(lambda: _stands(kind, run, rank), process):
        return None
    launcher = kind.endswith("launcher")
    os.kill(process.pid if launcher else pids[rank], number)
    return time.monotonic(), pids, None if launcher else rank


def _writes(tier: Path) -> bool:
    return bool(list(tier.glob("*.part")))


def _stands(kind: str, run: Path, rank: int) -> bool:
    """Whether the run is where the kind says."""
    if kind.endswith("launcher"):
        return True
    if "flipped" in kind or kind.endswith("gone"):  # the one before is what the run goes on from
        return len(complete(_tier(kind, run))) > 1
    phase, beat = PHASES.get(kind.partition(" in ")[2]), read_beat(run / "beats", rank)
    if phase is None:
        return _writes(_tier(kind, run))
    return beat is not None and beat.kind == phase


def _when(true: Callable[[], bool], process: subprocess.Popen) -> bool:
    """Waits busily until something is true; False when the process ends before."""
    while not true():
        if process.poll() is not None:
            return False
    return True


def _rank_pids(launcher: subprocess.Popen) -> list[int]:
    """In order of rank; none where the run has ended."""
    found = {}
    try:
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        for pid in children:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found[next(int(w[5:]) for w in words if w.startswith(b"RANK="))] = int(pid)
    except (OSError, StopIteration):
        return []
    return [found[rank] for rank in sorted(found)]


def _outlive(pids: list[int]) -> list[int]:
    """Those of the ranks that run on for END_S after their launcher ended; they are killed."""
    deadline = time.monotonic() + END_S
    while (running := list(filter(_runs, pids))) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return running


def _runs(pid: int) -> bool:
    """An ended process that nobody waits for keeps its number, but no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def _little_disk() -> None:
    """Files end at 1 MiB: logs fit, a checkpoint does not. Inherited by the ranks."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))


def _flip(tier: Path, rng: random.Random, files: str) -> None:
    """A bit of a byte of one of the newest checkpoint's `files`; of three bytes of a large one."""
    file = rng.choice(sorted(complete(tier)[-1].glob(files)))
    data = bytearray(file.read_bytes())
    for _ in range(1 if file.suffix == ".json" else 3):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def _named(outcomes: list[Outcome]) -> str:
    known = [outcome.named for outcome in outcomes if outcome.named is not None]
    return str(sum(known)) if known else ""


def _table(outcomes: list[Outcome]) -> str:
    columns = (
        "fault | times | equal | named | detect s, worst | detect s, median | resume s, median"
    )
    lines = [f"| {columns} |"]
    lines.append("|---|---|---|---|---|---|---|")
    for kind in ALL_KINDS:
        mine = [o for o in outcomes if o.kind == kind]
        if mine:
            detect = [o.detect_s for o in mine]
            lines.append(
                f"| {kind} | {len(mine)} | {sum(o.equal for o in mine)} | {_named(mine)} | "
                f"{max(detect):.1f} | "
                f"{statistics.median(detect):.1f} | "
                f"{statistics.median(o.resume_s for o in mine):.1f} |"
            )
    lines.append(
        f"\n{sum(o.equal for o in outcomes)} of {len(outcomes)} faults ended in a resumed run "
        "equal to the undisturbed one."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
