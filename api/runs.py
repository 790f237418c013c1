"""Run a program's ranks on this machine, one process each."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .demands import Say, silent
from .errors import RunFailedError, one_class
from .objects import spec_of, specs_of
from .programs import Program
from .results import RunResult, result_of

if TYPE_CHECKING:
    from meshwright.runtime.training.options import RunOptions
    from meshwright.runtime.training.past_run import PastRun

# Options of a run that going on with it does not repeat.
_NOT_KEPT = {"resume": "auto", "fresh": False, "allow_change": False, "weights": ""}


class Trainer:
    """Training runs of a program on this machine.

    options: fields of RunOptions by name, of which `out` is the run's folder; lengths may be
    tokens, such as steps="2e9tok", and `data` a class or function of yours. callbacks: classes or
    functions that the ranks import (see docs/api.md), or their names. restarts: times that a run
    starts again by itself when a rank died or hung. port: of the ranks' rendezvous, 0 takes a free
    one. quiet: print nothing of what rank 0 prints. say: takes what is to be told of restarts.

    Raises MeshwrightError for an option that is none, or is outside of its bounds.
    """

    @one_class
    def __init__(
        self,
        program: Program | str | Path,
        *,
        callbacks: Sequence[object] = (),
        restarts: int = 0,
        port: int = 0,
        quiet: bool = False,
        say: Say = silent,
        **options: Any,
    ) -> None:
        self.program = program.folder if isinstance(program, Program) else Path(program)
        if "data" in options:
            options["data"] = spec_of(options["data"])
        if callbacks:
            options["callbacks"] = specs_of(callbacks)
        self.options = _options(self.program, options)
        self.restarts, self.port, self.quiet, self.say = restarts, port, quiet, say

    @one_class
    def train(self) -> RunResult:
        """Run to the last step; a run of the same folder goes on from its newest checkpoint.

        Raises RunFailedError where the run is refused, a rank dies, or none makes progress.
        """
        options = asdict(self.options)
        return self._train({**options, **_set_live(options)})

    def _train(self, options: dict[str, Any]) -> RunResult:
        from meshwright.runtime.given import check_given
        from meshwright.runtime.training.options import STOPPED
        from meshwright.runtime.training.past_run import read_run

        check_given(self.program, options)
        from meshwright.runtime.launch.launcher import start_with_restarts

        ended = start_with_restarts(
            self.program, options, self.restarts, say=self.say, port=self.port, quiet=self.quiet
        )
        if ended.code not in (0, STOPPED):
            raise RunFailedError(ended.code, ended.said)
        return result_of(read_run(Path(self.options.out)), ended.code)


def _set_live(options: dict[str, Any]) -> dict[str, Any]:
    """Return what a user set while the run of a folder was live, for the command that goes on with
    it; nothing where it starts anew, or changes are asked for."""
    from meshwright.runtime.training.past_run import kept_values

    anew = options["fresh"] or options["resume"] not in ("", "auto")
    return {} if anew or options["allow_change"] else kept_values(Path(options["out"]), options)


def _options(program: Path, given: dict[str, Any]) -> "RunOptions":
    """Return options by name, lengths in tokens as steps of the program."""
    from meshwright.runtime.training.options import check_names, run_options
    from meshwright.runtime.training.spans import program_tokens_per_step

    check_names(given)
    return run_options(given, partial(program_tokens_per_step, program))


def run(program: Program | str | Path, **options: Any) -> RunResult:
    """Train a program on this machine; return what came of it. options: as Trainer takes them."""
    return Trainer(program, **options).train()


@one_class
def preflight(program: str | Path, out: Path, *, anyway: bool = False) -> None:
    """Compare this machine with what a program's plan assumes, and write OUT/preflight.json.

    Raises RunFailedError where the machine cannot run the program at all.
    """
    from meshwright.runtime.given import check_given
    from meshwright.runtime.launch.launcher import start_with_restarts

    options = asdict(_options(Path(program), {"preflight": "only", "out": str(out)}))
    options |= {"anyway": anyway, "save_minutes": 0.0}
    check_given(Path(program), options)
    ended = start_with_restarts(Path(program), options, 0, say=silent)
    if ended.code:
        raise RunFailedError(ended.code, ended.said)


@one_class
def resume(
    folder: str | Path,
    *,
    program: Program | str | Path | None = None,
    say: Say = silent,
    **options: Any,
) -> RunResult:
    """Go on with a run from its newest checkpoint, as its run.json says; options override that.

    program: or its folder, in place of the run's own. say: takes where it goes on, before torch is
    imported, and what is to be told of restarts. Raises MeshwrightError where there is nothing to
    go on from, or nothing left to do.
    """
    from meshwright.runtime.training.options import option_names
    from meshwright.runtime.training.past_run import read_run

    past = read_run(Path(folder))
    if "weights" in options:
        raise _other_weights(past, str(options["weights"]))
    if past.state == "finished" and past.options["steps"] == past.kept and "steps" not in options:
        raise _finished(past)
    say(_going_on(past))
    done = _steps_saved(past)
    found = _program(past, program.folder if isinstance(program, Program) else program)
    kept = {name: past.options[name] for name in option_names() if name in past.options}
    trainer = Trainer(found, **{**kept, **_NOT_KEPT, "out": str(past.folder), **options}, say=say)
    if past.state == "finished" and trainer.options.steps == done:
        raise _finished(past)
    return trainer._train(asdict(trainer.options))


def _other_weights(run: "PastRun", weights: str) -> ValueError:
    return ValueError(
        f"--weights {weights}: {run.folder} goes on from the weights of its checkpoint; leave it "
        "out, or start a run of these weights: meshwright run PROGRAM --weights DIR --out ANOTHER"
    )


def _finished(run: "PastRun") -> ValueError:
    return ValueError(
        f"{run.folder} has done {run.done} of {run.done} steps; give more by --steps, and "
        "--allow-change where that makes the learning rate jump"
    )


def _going_on(run: "PastRun") -> str:
    """Return where a run goes on. Raises ValueError where it has no checkpoint."""
    from meshwright.runtime.fast_mark import read_mark

    fast = read_mark(run.folder)
    if run.newest is None and not fast:
        raise _nothing_saved(run)
    name = run.newest.name if run.newest else ""
    where = f"step {fast} on the disks of its hosts" if fast > run.kept else name
    model = (run.said["identity"]["model"] or {}).get("name", "a model")
    return (
        f"{model} in {run.folder}, {run.state} after {run.done} of {run.options['steps']} steps: "
        f"going on from {where}; importing torch"
    )


def _steps_saved(run: "PastRun") -> int:
    """Return the steps of the newest checkpoint. Raises ValueError where there is none."""
    from meshwright.runtime.checkpoint.manifest import complete, step_of
    from meshwright.runtime.fast_mark import read_mark

    saved, fast = complete(run.folder / "checkpoints"), read_mark(run.folder)
    if not saved and not fast:
        raise _nothing_saved(run)
    return max([fast, *map(step_of, saved[-1:])])


def _nothing_saved(run: "PastRun") -> ValueError:
    return ValueError(
        f"{run.folder}/checkpoints holds 0 checkpoints to go on from (--save-every makes some); "
        f"the run was started by: {run.said['starts'][0]['command']}"
    )


def _program(run: "PastRun", given: str | Path | None) -> Path:
    """Return the program's folder: the one given, else the one in the run's own folder, else where
    it lay; say where it is not what the run began with."""
    from meshwright.runtime.training.past_run import program_hash

    known = run.said["program"]
    places = [Path(given)] if given else [run.folder / "program", Path(known["folder"])]
    found = next((path for path in places if (path / "main.py").is_file()), None)
    if found is None:
        raise ValueError(
            f"no program in {' or '.join(map(str, places))}; compile {run.folder}'s plan again, "
            "and give its folder by --program"
        )
    if program_hash(found) != known["sha256"]:
        print(
            f"{found} is not the program that the run began with; its checkpoints go on under any "
            "plan of the model",
            file=sys.stderr,
        )
    return found
