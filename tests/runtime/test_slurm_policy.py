"""What follows the end of an attempt: the rule alone, and which nodes are at fault."""

import json
from collections import Counter
from pathlib import Path

import pytest

from meshwright.runtime.slurm.attempts import Attempt, Attempts, read_attempts
from meshwright.runtime.slurm.policy import Ending, Policy, verdict
from meshwright.runtime.slurm.reports import GONE, LOST, NodeEnd, at_fault
from meshwright.runtime.slurm.site import Site, read_site
from meshwright.runtime.training.options import ABORTED, STOPPED, UNFIT

HUNG = 3
KILLED = {"node2": "rank 1 on node2: killed"}


def ending(code: int, **more: object) -> Ending:
    said = {"asked": False, "running": True, "failed": {}, "in_a_row": 1, "times": {}, **more}
    return Ending(code, **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "left", "planned", "policy", "do", "without"),
    [
        (ending(0), 4, 4, {}, "done", ()),
        # A stop that was asked for: saved, queued again; from outside of the job it is the end.
        (ending(STOPPED, asked=True), 4, 4, {}, "requeue", ()),
        (ending(STOPPED, asked=True, running=False), 4, 4, {}, "stop", ()),
        (ending(STOPPED), 4, 4, {}, "stop", ()),
        # A rank that died while the others saved does not keep the job from coming back.
        (ending(1, asked=True), 4, 4, {}, "requeue", ()),
        # Refused input and an abort are final, whatever was asked.
        (ending(2, asked=True), 4, 4, {}, "stop", ()),
        (ending(ABORTED), 4, 4, {}, "stop", ()),
        # Dead and hung ranks: again on the nodes that are left, as many as a plan needs.
        (ending(1, failed=KILLED, times={"node2": 1}), 4, 4, {}, "restart", ()),
        (ending(HUNG, failed=KILLED, times={"node2": 1}), 3, 1, {}, "restart", ()),
        (ending(1, failed=KILLED, times={"node2": 1}), 3, 4, {}, "requeue", ()),
        # A node that failed twice is left out, also when the job is queued again.
        (ending(1, failed=KILLED, times={"node2": 2}), 3, 3, {}, "restart", ("node2",)),
        (ending(1, failed=KILLED, times={"node2": 2}), 3, 4, {}, "requeue", ("node2",)),
        # As often as it is told, without a new checkpoint between them.
        (ending(1, in_a_row=3), 4, 4, {"restarts": 3}, "restart", ()),
        (ending(1, in_a_row=4), 4, 4, {"restarts": 3}, "stop", ()),
        (ending(1, in_a_row=1), 4, 4, {"restarts": 0}, "stop", ()),
        # As the user says.
        (ending(1), 4, 4, {"on_failure": "stop"}, "stop", ()),
        (ending(1), 4, 4, {"on_failure": "requeue"}, "requeue", ()),
        # The preflight: without the slow nodes; where none stands out, not at all.
        (ending(UNFIT, failed={"node3": "slow"}), 3, 3, {}, "restart", ("node3",)),
        (ending(UNFIT, failed={"node3": "slow"}), 3, 4, {}, "requeue", ("node3",)),
        (ending(UNFIT), 4, 4, {}, "stop", ()),
    ],
)
def test_what_follows_an_attempt(
    found: Ending, left: int, planned: int, policy: dict, do: str, without: tuple[str, ...]
) -> None:
    said = verdict(found, left, planned, Policy(**policy))
    assert (said.do, said.without) == (do, without) and said.why


def test_pauses_double_up_to_five_minutes() -> None:
    policy = Policy(backoff_s=10.0)
    pauses = [policy.pause_s(n) for n in (0, 1, 2, 3, 6, 60)]
    assert pauses == [10.0, 10.0, 20.0, 40.0, 300.0, 300.0]


def attempt(number: int, code: int, first: int, saved: int, *failed: str) -> Attempt:
    why = dict.fromkeys(failed, "why")
    return Attempt("7", 0, number, ("node1",), 0.0, 1.0, code, first, saved, why, "then")


def test_failures_count_over_restarts_of_the_job(tmp_path: Path) -> None:
    """A new checkpoint, or a stop that was asked for, begins the row anew; so does a new job."""
    kept = Attempts(tmp_path, "7")
    for one in (
        attempt(1, 1, 0, 0, "node2"),
        attempt(2, 1, 0, 8, "node2"),
        attempt(3, 1, 8, 8, "node1"),
        attempt(4, 3, 8, 8, "node3"),
    ):
        kept.add(one)
    with open(tmp_path / "slurm" / "attempts.jsonl", "a") as file:
        file.write('{"job": "7", "cut sh')
    again = Attempts(tmp_path, "7")
    assert again.failures_in_a_row() == 2 and again.next_number == 5
    assert again.times_failed({"node3": "why"}) == Counter(node1=1, node2=2, node3=2)
    again.known.append(attempt(5, STOPPED, 8, 8))
    assert again.failures_in_a_row() == 0
    assert read_attempts(tmp_path / "none") == []
    anew = Attempts(tmp_path, "8")
    assert anew.failures_in_a_row() == 0 and not anew.times_failed({}) and anew.next_number == 5


def end(node: str, code: int, at_s: float, **more: object) -> NodeEnd:
    said = {"said": "error: it failed", "killed": False, "cause": True, **more}
    return NodeEnd(node, code, at_s=at_s, **said)  # type: ignore[arg-type]


def test_the_node_at_fault() -> None:
    """One that is lost before one whose rank was killed, before one that told nothing, before the
    first that failed; of a hang the node that the message names."""
    first, second = end("node1", 1, 5.0), end("node2", 1, 6.0)
    both = {"node1": first, "node2": second}
    assert at_fault(both, []) == {"node1": "it failed"}
    assert at_fault(both, ["node3"], ["node4"]) == {"node3": LOST}
    assert at_fault(both, [], ["node4"]) == {"node4": GONE}
    killed = {**both, "node2": end("node2", 1, 6.0, killed=True)}
    assert at_fault(killed, [], ["node4"]) == {"node2": "it failed"}
    dragged = {"node1": end("node1", 1, 5.0, killed=True, cause=False), "node2": second}
    assert at_fault(dragged, []) == {"node2": "it failed"}
    said = "error: rank 5 on node2 is the straggler: 9 s in B"
    assert at_fault({"node1": end("node1", HUNG, 5.0, said=said), "node2": second}, []) == {
        "node2": said.removeprefix("error: ")
    }
    assert at_fault({"node1": end("node1", STOPPED, 5.0)}, []) == {}


def test_a_site_is_read_and_its_mistakes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_site() == Site()
    own = tmp_path / "meshwright" / "site.toml"
    own.parent.mkdir()
    own.write_text('partition = "gpu"\nmodules = ["a", "b c"]\ngpus_per_node = 4\n')
    assert read_site() == Site(partition="gpu", modules=("a", "b c"), gpus_per_node=4)
    lines = list(read_site().lines(tmp_path / "cache"))
    assert lines == ["module load a 'b c'", f"export TORCHINDUCTOR_CACHE_DIR={tmp_path}/cache"]
    for text, said in (
        ('partitoin = "gpu"', "unknown key 'partitoin'; did you mean partition"),
        ("partition = 3", "partition is 3, expected a string"),
        ('modules = "a"', "expected a list of strings"),
        ("exclusive = 1", "expected true or false"),
        ("partition =", "not TOML"),
    ):
        given = tmp_path / "other.toml"
        given.write_text(text)
        with pytest.raises(ValueError, match=said):
            read_site(str(given))
    with pytest.raises(ValueError, match="No such file"):
        read_site(str(tmp_path / "none.toml"))


def test_attempts_are_lines_of_json(tmp_path: Path) -> None:
    Attempts(tmp_path, "7").add(attempt(1, 0, 0, 8))
    (line,) = (tmp_path / "slurm" / "attempts.jsonl").read_text().splitlines()
    assert json.loads(line)["then"] == "then"
