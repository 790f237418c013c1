"""Goodput of a job of Slurm that is struck again and again, beside the same job undisturbed.

    python benchmarks/goodput.py [--steps 200] [--faults 10] [--seed 0] [--workdir DIR]

Needs a Slurm of eight nodes, `python tools/slurm_here.py start --nodes 8`, as a node that failed
twice is used no more, and is the only one to use it. Two CPU ranks, a node each, with a node to
spare; a checkpoint every 10 steps. A step takes STEP_S at least, as its rows come no
faster, so that the machine's own speed counts for little. The faults strike behind random steps: a
rank is killed or stopped, what starts a node's ranks is killed, a node is lost (its daemon starts
again when the job goes on), the job is queued again by hand, or told of the end of its time. Losses
must be the undisturbed run's, each step once. Prints what was done, and a table.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faults_slurm
from faults import CLI, _losses

from meshwright.api.slurm import SlurmOptions, submit
from meshwright.runtime.slurm.attempts import read_attempts
from meshwright.runtime.slurm.scheduler import job_state
from meshwright.runtime.training.goodput import Goodput, goodput
from meshwright.runtime.training.past_run import read_run

STEP_S, SAVE_EVERY, ROWS = 0.5, 10, 4
STRIKES = (
    "SIGKILL of a rank",
    "SIGSTOP of a rank",
    "SIGKILL of what starts a node's ranks",
    "lost node, one to spare",
    "scontrol requeue",
    "signal before the time ends",
)
# Rows that come slowly; the first 16 are read at the start to know them again.
SLOW = f"""import time

def rows(index, length):
    if index > 15:
        time.sleep({STEP_S / ROWS})
    return [(index * 7 + place * place) % 251 for place in range(length)]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workdir", type=Path)
    given = parser.parse_args()
    if lacks := faults_slurm.missing():
        raise SystemExit(f"this machine lacks {lacks}")
    with tempfile.TemporaryDirectory() as folder:
        work = (given.workdir or Path(folder)).resolve()
        program = _program(work)
        whole = _run(program, work / "undisturbed", given.steps, [])
        rng = random.Random(given.seed)
        kinds = [STRIKES[n % len(STRIKES)] for n in range(given.faults)]
        rng.shuffle(kinds)
        last = given.steps - SAVE_EVERY
        strikes = list(
            zip(sorted(rng.sample(range(SAVE_EVERY, last), given.faults)), kinds, strict=True)
        )
        struck = _run(program, work / "struck", given.steps, strikes, rng)
        equal = _losses(work / "struck") == _losses(work / "undisturbed")
    print(_table(whole, struck))
    print(f"\nlosses {'equal' if equal else 'NOT EQUAL'}, {given.steps} steps, each once")
    sys.exit(not equal)


def _program(work: Path) -> Path:
    work.mkdir(parents=True, exist_ok=True)
    (work / "slow.py").write_text(SLOW)
    plan = work / "plan.txt"
    sizes = ["--cluster", "cpu:1x2", "--seq", "64", "--global-batch", str(2 * ROWS), "--no-search"]
    subprocess.run([*CLI, "plan", "tiny", *sizes, "-o", plan], check=True, capture_output=True)
    words = [*CLI, "compile", plan, "-o", work / "program"]
    subprocess.run(words, check=True, capture_output=True)
    return work / "program"


def _run(
    program: Path,
    run: Path,
    steps: int,
    strikes: list[tuple[int, str]],
    rng: random.Random | None = None,
) -> Goodput:
    """Submit a job, strike it behind each of the steps, and wait for its end."""
    options = {"data": "py:slow:rows", "steps": steps, "save_every": SAVE_EVERY, "no_compile": True}
    options |= {"eval_batches": 1, "schedule": "constant", "hang_after": 6.0}
    site = run.with_name(f"{run.name}_site.toml")
    path = json.dumps(f"export PYTHONPATH={program.parent}")
    site.write_text(f"setup = [{path}]\n")
    slurm = SlurmOptions(backoff=1.0, time="01:00:00", spare=1, site=str(site), restarts=5)
    job = submit(program, slurm, options=options, out=run).job
    try:
        for step, kind in strikes:
            before = len(read_attempts(run))
            faults_slurm._until(job, lambda step=step: _step(run) >= step)
            attempt = _nodes(run)
            victim = _strike(faults_slurm.case_of(kind), job, run, rng, attempt)
            began = time.monotonic()
            faults_slurm._until(job, lambda n=before: len(read_attempts(run)) > n)
            said = read_attempts(run)[-1]
            print(
                f"step {step}: {kind} {victim}: attempt {said.number} on {', '.join(said.nodes)} "
                f"ended after {time.monotonic() - began:.1f} s: {said.then}",
                flush=True,
            )
            faults_slurm.repair()
        faults_slurm._until(job, lambda: job_state(job) not in faults_slurm._ALIVE, 1200.0)
        state = job_state(job)
    finally:
        subprocess.run(["scancel", "--quiet", job])
    found = goodput(read_run(run))
    if state != "COMPLETED" or found is None:
        raise SystemExit(f"job {job} is {state}; its log is in {run}/slurm")
    return found


def _step(run: Path) -> int:
    """Return the steps that the newest start has done; -1 while it begins."""
    path = run / "control.json"
    rows = _losses(run)
    return rows[-1][0] + 1 if path.is_file() and rows else -1


def _nodes(run: Path) -> tuple[str, ...]:
    from meshwright.runtime.slurm.reports import read_begun

    number = len(read_attempts(run)) + 1
    begun = read_begun(run / "slurm" / f"attempt_{number:03d}")
    return begun.nodes if begun else ()


def _strike(
    case: faults_slurm.Case, job: str, run: Path, rng: random.Random | None, nodes: tuple[str, ...]
) -> str:
    """Do it, and return the node; of what strikes a node that is the second of the attempt."""
    assert rng is not None
    if case.spare:
        return faults_slurm._lose(nodes[1], job, run, rng)
    if "_kill_agent" in str(case.do):
        return faults_slurm._kill_agent(nodes[1], job, run, rng)
    struck = case.do(job, run, rng)
    return nodes[int(struck.removeprefix("node")) - 1] if struck else ""


def _table(whole: Goodput, struck: Goodput) -> str:
    rows = {
        "goodput": lambda g: f"{g.share:.1%}",
        "wall, s": lambda g: f"{g.wall_s:.0f}",
        "kept steps, s": lambda g: f"{g.steps_s:.1f}",
        "slower steps, s": lambda g: f"{g.slow_s:.1f}",
        "lost steps, s": lambda g: f"{g.lost_s:.1f}",
        "start, evaluations, checkpoints, s": lambda g: f"{g.start_s:.1f}",
        "away: queue, back-off, launch, s": lambda g: f"{g.away_s:.1f}",
        "starts": lambda g: str(g.starts),
    }
    lines = ["|  | undisturbed | struck |", "|---|---|---|"]
    lines += [f"| {name} | {of(whole)} | {of(struck)} |" for name, of in rows.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
