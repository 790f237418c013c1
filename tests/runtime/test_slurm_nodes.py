"""Nodes of a job: their order, the way to them, and who watches over the job's script."""

import argparse
import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from meshwright.runtime.launch import interface
from meshwright.runtime.slurm import agent, scheduler, sentinel
from meshwright.runtime.slurm.reports import (
    Begun,
    is_stopped,
    read_begun,
    tell_begun,
    tell_step,
    tell_stop,
)
from meshwright.runtime.slurm.step import Step

# In place of srun: it says when a signal came.
SRUN = """#!/bin/sh
trap 'touch "$SIGNALLED"; exit 75' USR1
while :; do sleep 0.05; done
"""
TREE = """SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n1,n3,n5
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n2,n4
SwitchName=top Level=1 LinkSpeed=1 Nodes=n1,n2,n3,n4,n5 Switches=s1,s2
"""


@pytest.mark.parametrize(
    ("text", "nodes", "order"),
    [
        (TREE, "n1 n2 n3 n4", "n1 n3 n2 n4"),
        (TREE, "n2 n3 n4 n5 x1", "n2 n4 n3 n5 x1"),
        ("BlockName=b1 Nodes=n1,n4\nBlockName=b2 Nodes=n2,n3\n", "n1 n2 n3 n4", "n1 n4 n2 n3"),
        ("", "n3 n1", "n3 n1"),
    ],
)
def test_nodes_of_a_switch_lie_side_by_side(
    text: str, nodes: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(words: Sequence[str]) -> str:
        return text if words[-1] == "topology" else words[-1].replace(",", "\n")

    monkeypatch.setattr(scheduler, "call", call)
    assert scheduler.by_switch(nodes.split()) == tuple(order.split())


def test_without_switches_the_order_is_slurms(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(words: Sequence[str]) -> str:
        raise scheduler.SlurmError("no topology")

    monkeypatch.setattr(scheduler, "call", call)
    assert scheduler.by_switch(["n3", "n1"]) == ("n3", "n1")


def test_the_interface_is_that_to_the_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interface.interface_to("127.0.0.1", 9) == "lo"
    assert interface.interface_to("no such host.invalid", 9) == ""
    monkeypatch.setenv(interface.VARIABLE, "ib0")
    interface.name_interface("127.0.0.1", 9)
    assert interface.os.environ[interface.VARIABLE] == "ib0", "the user's word"
    monkeypatch.delenv(interface.VARIABLE)
    interface.name_interface("127.0.0.1", 9)
    assert interface.os.environ.pop(interface.VARIABLE) == "lo"


def test_a_supervisor_that_shows_nothing_and_does_not_answer_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is slow is asked for, and watched on where it answers."""
    for name, seconds in {"_SIGN_EVERY_S": 0.02, "_LOOK_EVERY_S": 0.02, "_SILENT_S": 2.0}.items():
        monkeypatch.setattr(sentinel, name, seconds)
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    asked: list[str] = []
    signs = sentinel.Signs("7", tmp_path / "slurm")
    found: list[str] = []

    def is_gone(host: str) -> bool:
        asked.append(host)
        return len(asked) == 2

    watch = lambda: found.append(sentinel.watch(tmp_path / "slurm", is_gone))  # noqa: E731
    watching = threading.Thread(target=watch)
    watching.start()
    watching.join(3.0)
    assert not asked, "it shows that it lives"
    monkeypatch.setattr(signs, "_show", lambda number: None)
    watching.join(20.0)
    assert found == ["node1"] and asked == ["node1", "node1"]


class Started:
    """A process that runs until it is ended; started: the nodes of all."""

    started: list[str] = []

    def __init__(self, words: Sequence[str], **_: object) -> None:
        self.ended = False
        self.started.append(next(w for w in words if w.startswith("--nodelist=")).partition("=")[2])

    def poll(self) -> int | None:
        return 0 if self.ended else None

    def terminate(self) -> None:
        self.ended = True


def test_a_sentinel_moves_off_a_node_that_the_job_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the process that was to start there has not ended."""
    monkeypatch.setattr(Started, "started", [])
    monkeypatch.setattr(sentinel.subprocess, "Popen", Started)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    watching = sentinel.Sentinel("7", tmp_path, ["watch"])
    for nodes in (["n1", "n2", "n3"], ["n1", "n2", "n3"], ["n1", "n2"], ["n1"]):
        watching.keep(nodes)
    assert Started.started == ["n3", "n2"]
    assert watching.process is not None and watching.process.poll() == 0, "none is left to watch"


def test_a_sentinel_asks_again_where_the_controller_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def requeue(job: str) -> None:
        asked.append(job)
        if len(asked) < 3:
            raise scheduler.SlurmError("scontrol: no answer in 60 s")

    monkeypatch.setattr(sentinel, "requeue", requeue)
    monkeypatch.setattr(sentinel, "watch", lambda folder, is_gone: "n1")
    monkeypatch.setattr(sentinel, "_AGAIN_S", 0.0)
    monkeypatch.setattr(sentinel.signal, "signal", lambda number, action: None)
    assert sentinel.main(["7", str(tmp_path)]) == 0
    assert asked == ["7"] * 3 and sentinel.lost_before(tmp_path) == "n1"


def test_a_second_job_of_a_run_is_refused_while_the_first_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {"7": "RUNNING"}
    monkeypatch.setattr(sentinel, "job_state", states.get)
    sentinel.Signs("7", tmp_path / "slurm")
    sentinel.Signs("7", tmp_path / "slurm")  # queued again
    with pytest.raises(scheduler.SlurmError, match="job 7 runs there"):
        sentinel.Signs("8", tmp_path / "slurm")
    states["7"] = "CANCELLED"
    sentinel.Signs("8", tmp_path / "slurm")


def test_a_stop_is_signalled_once_every_node_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it lies in a file: a signal ends what has not begun to look for one."""
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SIGNALLED", str(tmp_path / "signalled"))
    folder, seen = tmp_path / "attempt", []
    tell_begun(folder, Begun(("n1", "n2"), 0, 0.0))
    step = Step(scheduler.Allocation("7", ("n1", "n2"), 0), ("n1", "n2"), [], folder)
    step.stop()

    def tick() -> None:
        seen.append((tmp_path / "signalled").exists())
        for count, node in ((6, "n1"), (12, "n2")):
            if len(seen) == count:
                tell_step(folder, node, "0")

    step.wait(tick)
    assert is_stopped(folder) and len(seen) >= 12 and not any(seen[:12])
    assert (tmp_path / "signalled").exists()


def test_an_agent_passes_on_a_stop_that_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[int] = []
    node = agent._Node(tmp_path, argparse.Namespace(attempt=tmp_path))
    monkeypatch.setattr(agent.os, "kill", lambda process, number: came.append(number))
    assert node._told_elsewhere() == "" and not came
    tell_stop(tmp_path)
    assert node._told_elsewhere() == node._told_elsewhere() == ""
    assert came == [signal.SIGUSR1]


def test_what_was_lost_is_told_once(tmp_path: Path) -> None:
    assert sentinel.lost_before(tmp_path) == "" and read_begun(tmp_path) is None
    (tmp_path / "lost.json").write_text(json.dumps({"host": "node1", "at_s": 1.0}))
    assert sentinel.lost_before(tmp_path) == "node1" and sentinel.lost_before(tmp_path) == ""
    begun = Begun(("node3", "node1"), 8, 2.0)
    tell_begun(tmp_path, begun)
    assert read_begun(tmp_path) == begun


def test_a_job_asks_a_controller_that_is_away_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers the third time; what it refuses is not asked again."""
    command = tmp_path / "scontrol"
    command.write_text(
        '#!/bin/sh\necho x >> "$0.asked"\n'
        '[ "$3" = bad ] && { echo "slurm_load_node error: Invalid node name" >&2; exit 1; }\n'
        '[ $(wc -l < "$0.asked") -lt 3 ] && { echo "slurm_load_node error: Unable to contact slurm '
        'controller (connect failure)" >&2; exit 1; }\n'
        'echo "NodeName=n1 State=DOWN*"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(scheduler, "_AGAIN_S", 0.0)
    assert scheduler.gone(["n1"]) == {"n1"}
    asked = tmp_path / "scontrol.asked"
    assert asked.read_text().count("x") == 3
    with pytest.raises(scheduler.SlurmError, match="Invalid node name"):
        scheduler.gone(["bad"])
    assert asked.read_text().count("x") == 4
