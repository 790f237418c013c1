"""Jobs on a real Slurm of four nodes: to the end, stopped, queued again, bereft of a node.

The oracle is the same program run on this machine without Slurm and without a disturbance.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import slurm_here
from launching import losses, rows
from slurm.jobs import OPTIONS, Job, job_file, wait_until

from meshwright.api.errors import MeshwrightError
from meshwright.api.jobs import prepare
from meshwright.api.runs import run
from meshwright.api.slurm import cancel
from meshwright.cli import main
from meshwright.runtime.fast_mark import read_mark
from meshwright.runtime.slurm.scheduler import call, job_state
from meshwright.runtime.slurm.script import Demands, Script, log_pattern, script_text
from meshwright.runtime.training.options import UNFIT

pytestmark = pytest.mark.usefixtures("slurm")
# Sums of float32 in another order, over STEPS steps.
REPLANNED = 1e-6
# Makes a step last, whatever the machine.
SLOW = "import time\n\ndef wait(event):\n    time.sleep(0.2)\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of two nodes, in a folder whose name the shell would take apart."""
    folder = tmp_path_factory.mktemp("pro gram")
    return prepare(job_file(folder, 2), out=folder / "made; $(exit 3)").folder / "program"


@pytest.fixture(scope="module")
def reference(program: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses by step of the undisturbed run."""
    out = tmp_path_factory.mktemp("reference") / "run"
    run(program, quiet=True, out=str(out), **OPTIONS)
    return losses(out)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the list of jobs apart from the user's, and start in a folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_a_job_stopped_twice_goes_on_bit_for_bit(
    program: Path, reference: dict[int, float], tmp_path: Path
) -> None:
    """First the script is told of the end of its time, then the job is queued again by hand."""
    with Job(program, tmp_path / "run") as job:
        job.after_step(8)
        job.signal_batch("USR1")
        job.until(lambda: len(job.attempts) == 1, "the end of the first attempt")
        first = job.attempts[0]
        assert first.code == 75 and first.then.startswith("requeue"), job.log
        job.after_step(first.saved + 8)
        subprocess.run(["scontrol", "requeue", job.id], check=True)
        assert job.finish() == reference
        assert [a.restart for a in job.attempts] == [0, 1, 2]
        assert all(len(a.nodes) == 2 for a in job.attempts)


@pytest.mark.long
def test_a_lost_node_is_named_and_the_run_planned_for_those_left(
    reference: dict[int, float], tmp_path: Path
) -> None:
    """Three nodes; the power of one fails. The others take the same global batches."""
    with Job(job_file(tmp_path, 3), tmp_path / "run") as job:
        job.after_step(12)
        *left, lost = job.nodes
        slurm_here.kill_node(lost)
        try:
            found = job.finish()
        finally:
            slurm_here.start_node(lost)
        first, second = job.attempts
        assert list(first.failed) == [lost] and "lost" in first.failed[lost]
        assert f"{lost} failed" in job.log
        assert second.nodes == tuple(left) and second.first == first.saved
        assert found == pytest.approx(reference, rel=REPLANNED)


@pytest.mark.long
def test_a_stop_in_the_first_moment_of_an_attempt_loses_nothing(
    program: Path, reference: dict[int, float], tmp_path: Path
) -> None:
    """Agents that are not up yet are told by a file, as the signal would end them."""
    with Job(program, tmp_path / "run") as job:
        begun = tmp_path / "run" / "slurm" / "attempt_001" / "begun.json"
        job.until(begun.exists, "the first attempt")
        job.signal_batch("USR1")
        job.until(lambda: len(job.attempts) == 1, "the end of the first attempt")
        assert job.attempts[0].code == 75, job.log
        assert job.finish() == reference


@pytest.mark.long
def test_a_spare_node_takes_the_place_of_a_lost_one(
    program: Path, reference: dict[int, float], tmp_path: Path
) -> None:
    with Job(program, tmp_path / "run", spare=1) as job:
        job.after_step(12)
        kept, lost, spare = job.nodes
        slurm_here.kill_node(lost)
        try:
            assert job.finish() == reference
        finally:
            slurm_here.start_node(lost)
        assert job.attempts[1].nodes == (kept, spare)


@pytest.mark.long
def test_a_job_saves_before_its_time_ends(
    program: Path, reference: dict[int, float], tmp_path: Path
) -> None:
    """A minute of time, of which the last 40 seconds are for saving, by the job's own clock."""
    (tmp_path / "slow.py").write_text(SLOW)
    more, limits = {"callbacks": ["py:slow:wait"]}, {"time": "00:01:00", "stop_before": 40.0}
    with Job(program, tmp_path / "run", more, **limits) as job:
        assert job.finish() == reference
        assert "the job's time ends in" in job.log and len(job.attempts) > 1
        assert all(a.code == 75 for a in job.attempts[:-1])


@pytest.mark.long
def test_fewer_nodes_after_a_stop_are_planned_anew(
    reference: dict[int, float], tmp_path: Path
) -> None:
    """Four nodes at first, two when the job is queued again."""
    with Job(job_file(tmp_path, 4), tmp_path / "run") as job:
        job.after_step(12)
        job.signal_batch("USR1")
        job.until(lambda: len(job.attempts) == 1, "the end of the first attempt")
        job.until(lambda: job_state(job.id) == "PENDING", "the queue")
        fewer = ["NumTasks=2", "NumNodes=2"]  # of a job that runs this would end two nodes
        subprocess.run(["scontrol", "update", f"JobId={job.id}", *fewer], check=True)
        assert job.finish() == pytest.approx(reference, rel=REPLANNED)
        assert [len(a.nodes) for a in job.attempts] == [4, 2]


@pytest.mark.long
def test_the_node_of_the_script_is_lost(
    program: Path, reference: dict[int, float], tmp_path: Path
) -> None:
    """Slurm keeps the other node for a job that nothing runs: from there it is queued again."""
    with Job(program, tmp_path / "run") as job:
        job.after_step(12)
        lost = job.nodes[0]
        slurm_here.kill_node(lost)
        try:
            job.until(lambda: len(job.attempts) == 1, "the start after the loss")
            assert job.finish() == reference
        finally:
            slurm_here.start_node(lost)
        first, second = job.attempts
        assert list(first.failed) == [lost] and "script of the job was lost" in job.log
        assert first.then.startswith("requeue") and lost not in second.nodes


@pytest.mark.long
def test_a_rank_is_killed_and_the_run_goes_on_from_disks_of_the_nodes(
    program: Path, reference: dict[int, float], tmp_path: Path
) -> None:
    """The first durable checkpoint would come after 50 steps."""
    fast = tmp_path / "fast"
    tiers = {"save_every": 50, "fast_dir": str(fast), "fast_every": 4}
    with Job(program, tmp_path / "run", tiers) as job:
        job.after_step(14)
        job.kill_rank(1)
        assert job.finish() == reference
        first, second = job.attempts
        assert (first.code, second.code) == (1, 0) and 12 <= second.first < 50, job.log
        failed = first.nodes[1]
        assert f"resumed {fast}" in job.log and f"{failed} failed: rank 1 on {failed}" in job.log
        assert list(fast.glob("*/node*")) == [], "removed at the end"


@pytest.mark.long
def test_a_preflight_that_finds_all_nodes_slow_ends_the_job(program: Path, tmp_path: Path) -> None:
    """None stands out that the run could go on without."""
    fast = shutil.copytree(program, tmp_path / "fast")
    (fast / "rates.json").write_text('{"matmul_per_s": 1e18}')
    with Job(fast, tmp_path / "run", preflight="stop") as job:
        job.until(lambda: bool(job.attempts), "the end of the attempt")
        first = job.attempts[0]
        assert first.code == UNFIT and not first.failed
        assert first.then.startswith("stop: the machines are not as planned"), job.log


@pytest.mark.long
def test_a_node_that_failed_twice_is_left_out_when_the_job_is_queued_again(
    program: Path, reference: dict[int, float], tmp_path: Path
) -> None:
    """Without a spare node one is left of two, which is too few."""
    with Job(program, tmp_path / "run") as job:
        job.after_step(8)
        job.kill_rank(1)
        job.until(lambda: len(job.attempts) == 1, "the end of the first attempt")
        job.after_step(job.attempts[0].saved + 8)
        job.kill_rank(1)
        assert job.finish() == reference
        first, second, third = job.attempts
        failed = first.nodes[1]
        assert first.nodes == second.nodes and failed not in third.nodes
        assert second.then == "requeue: 1 healthy nodes are left, 2 are needed"
        assert f"is queued again without {failed}\n" in job.log


@pytest.mark.long
def test_a_lost_node_takes_its_fast_copies_with_it(
    program: Path, reference: dict[int, float], tmp_path: Path
) -> None:
    """A spare node takes its place, whose disk is empty: the durable one is older."""
    tiers = {"save_every": 10, "fast_dir": str(tmp_path / "fast"), "fast_every": 4}
    with Job(program, tmp_path / "run", tiers, spare=1) as job:
        job.until(lambda: read_mark(job.out) >= 16, "the fast checkpoint after 16 steps")
        kept, lost, spare = job.nodes
        slurm_here.kill_node(lost)
        try:
            assert job.finish() == reference
        finally:
            slurm_here.start_node(lost)
        assert job.attempts[1].nodes == (kept, spare)
        assert "passed over a fast checkpoint: step" in job.log
        assert "checkpoints/step_00000010 after 10 steps" in job.log


@pytest.mark.long
def test_what_was_set_while_the_run_was_live_holds_after_a_restart(
    program: Path, tmp_path: Path
) -> None:
    """The checkpoint knows the new rate: the old one would make a jump, which is refused."""
    with Job(program, tmp_path / "run") as job:
        job.after_step(3)
        assert main(["control", "set", str(job.out), "lr=5e-4"]) == 0
        job.until(lambda: job.log.count("checkpoint after") > 2, "a checkpoint of the new rate")
        job.kill_rank(1)
        job.finish()
        assert len(job.attempts) == 2, job.log
        rates = [row["lr"] for row in rows(job.out) if "lr" in row]
        assert set(rates[20:]) == {5e-4}


@pytest.mark.long
def test_a_job_is_cancelled_by_its_folder_once_and_another_starts_anew_there(
    program: Path, reference: dict[int, float], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with Job(program, out) as job:
        job.after_step(12)
        assert cancel(str(out)) == job.id
        job.until(lambda: job_state(job.id) == "CANCELLED", "its end")
        with pytest.raises(MeshwrightError, match=f"job {job.id} ended before: CANCELLED"):
            cancel(job.id)
    for unknown in ("999999", f"{job.id}_7", "absent"):
        with pytest.raises(MeshwrightError, match="no job of that name is known to Slurm"):
            cancel(unknown)
    with Job(program, out, {"fresh": True}) as job:
        assert job.finish() == reference
        assert [attempt.first for attempt in job.attempts] == [0, 0]
        assert list(out.glob("earlier-001/checkpoints/step_*"))


def test_slurm_reads_names_and_paths_as_they_are_written(tmp_path: Path) -> None:
    """No shell reads the head of a script; sbatch has quotes, escapes and patterns of its own."""
    name = "$(touch caught) 'a' \"b\" \\ #c \u00fc%j; |"
    folder = tmp_path / "50%j 'a' \"b\" $(touch caught) \u00fc-%a"
    for number in range(2):
        Path(str(folder).replace("%a", str(number))).mkdir()
    output = log_pattern(folder, array=True)
    text = script_text(
        Demands(name, "1", output=output, array="0-1", exclusive=False),
        Script([], [], "/", "echo", ["-m", name], [], []),
    )
    (tmp_path / "job.sbatch").write_text(text)
    job = call(["sbatch", "--parsable", "--hold", str(tmp_path / "job.sbatch")]).strip()
    assert call(["squeue", "--noheader", "--format=%j", "--jobs", job]) == f"{name}\n"
    call(["scontrol", "release", job])
    wait_until(lambda: len(list(tmp_path.glob("50%j*/job-*.log"))) == 2, "two logs")
    logs = list(tmp_path.glob("50%j*/job-*.log"))
    wait_until(lambda: [path.read_text() for path in logs] == [f"-m {name} --\n"] * 2, "its words")
    assert not list(tmp_path.rglob("caught"))


def test_a_refused_run_stops_the_job(program: Path, tmp_path: Path) -> None:
    """A callback that fails is refused input: nothing is restarted."""
    (tmp_path / "own.py").write_text("def failing(event):\n    raise RuntimeError('no')\n")
    with Job(program, tmp_path / "run", {"callbacks": ["py:own:failing"]}) as job:
        job.until(lambda: bool(job.attempts), "the end of the attempt")
        assert job.attempts[0].code == 2 and job.attempts[0].then == "stop: the run is refused"
        assert job.log.count("--callback py:own:failing failed") == 1, job.log
