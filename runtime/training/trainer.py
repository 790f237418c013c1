"""One training run of one rank: steps, with evaluations and checkpoints between them."""

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Protocol

import torch

from ..checkpoint.manifest import rank, texts_of_all
from ..control.commands import Command
from ..engine import mesh
from ..engine.compiling import Compiler, missing_toolchain
from ..engine.executor import Executor, Marks
from ..engine.layout import Layout
from ..host import host_name
from ..identity import read_identity
from ..metrics.devices import peak_flops, peak_memory_bytes
from ..metrics.pace import Pace
from ..metrics.printed import Printed
from ..metrics.step_log import MFU_FORMULA, StepLog
from ..metrics.trackers import check_tracker, open_tracker
from ..optimizers.bad_step import BadStepError
from ..optimizers.optimizer import Optimizer
from . import fidelity, run_folder
from .callbacks import Callbacks, Event
from .controls import Controls, Windows, with_values
from .evaluation import Evaluation
from .fast_tier import open_fast_tier
from .feed import Feed
from .fidelity_file import predicted
from .loss_guard import LossGuard
from .opening import opening
from .options import STOPPED, RunOptions
from .program import build_executor
from .record import RunRecord
from .recovery import Recovery
from .rule_options import optimizer_options, rate_of
from .run_state import RunState
from .saving import Saver


class Stop(Protocol):
    """wanted: finish the step under way on all ranks, save, exit with STOPPED."""

    wanted: bool


class Beacon(Marks, Protocol):
    """Marks of a run. first_step: of this process, after which a step has its usual limit."""

    step: int
    first_step: float


class Trainer:
    """One training run of one rank. logs: whether this rank keeps the run's folder.

    write_limit_s: after which the write of a checkpoint counts as failed.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        options: RunOptions,
        beacon: Beacon,
        stop: Stop,
        say: Printed,
        *,
        logs: bool,
        write_limit_s: float,
    ) -> None:
        self.folder, self.layout, self.options, self.device = folder, layout, options, mesh.device()
        self.beacon, self.stop, self.say, self.logs = beacon, stop, say, logs
        self.out, self.write_limit_s = Path(options.out), write_limit_s
        self.step_ms: list[float] = []
        self._end_unsaved = False
        if logs:
            check_tracker(options.track)  # before an earlier run is moved aside
        begun = Event("on_start", 0, options.steps, rank(), self.out)
        self.callbacks = Callbacks(options.callbacks, begun)
        self.guard = LossGuard(options.spike)
        self.feed = Feed(options, layout, beacon)
        program = read_identity(folder)
        self.evaluation = Evaluation(options, layout, self.feed, program.loss)
        rate_of(0, options)  # refuse bad options before the weights are made
        beacon.mark("START")
        self.executor = self._executor()
        self.state = RunState(self.executor, self.feed, self.guard, options, program, say)
        self.fast = open_fast_tier(options)
        self.recovery = Recovery(options, self.state, say, logs, self.fast)
        self.controls = Controls(self.out, options)
        self.windows = Windows(self.executor, self.out)

    def _executor(self) -> Executor[Optimizer]:
        options, planned = self.options, self.layout.optimizer
        if options.rounding not in ("", self.layout.rounding):
            self.say(f"rounding {options.rounding}; the plan says {self.layout.rounding}")
        if options.optimizer and options.optimizer != planned:
            self.say(f"optimizer {options.optimizer}; the plan counted on {planned}")
        self.compiler = self._compiler()
        records = self.layout.replays and self.compiler is not None and not options.no_graphs
        executor = build_executor(
            self.folder,
            replace(self.layout, replays=records),
            optimizer_options(options, self.layout),
            seed=options.seed,
            compiler=self.compiler,
        )
        executor.beacon = self.beacon
        return executor

    def _compiler(self) -> Compiler | None:
        if self.options.no_compile:
            return None
        missing = missing_toolchain(self.device)
        if missing is not None:
            self.say.warn(
                f"not compiling: this machine lacks {missing}; the same text runs eagerly"
            )
            return None
        return Compiler(self.say.warn, self.say.stream)

    def train(self) -> int:
        """Run all steps; return the exit code, 0 or STOPPED."""
        self.beacon.mark("LOAD")
        # The lock lasts until the file is closed: as long as this run.
        self.lock: IO[str] | None = run_folder.hold(self.out) if self.logs else None
        self.saver = Saver(self.options, self.state, self.say, self.write_limit_s, self.fast)
        first = self.recovery.start()
        self.saver.turn_back(first)
        hosts = sorted(set(texts_of_all(host_name())))
        return self._recorded(first, hosts) if self.logs else self._run(first)

    def _recorded(self, first: int, hosts: list[str]) -> int:
        """Run with a record of how it began and how it ended."""
        self.say.open(self.out)
        compiling = self.compiler.wrapped if self.compiler else 0
        options = self.state.options
        self.say(opening(self.folder, self.layout, options, self.feed, hosts, first, compiling))
        record = RunRecord(self.out)
        start = self.fast.start if self.fast else ""
        record.begin(self.folder, self.state.options, self.state.identity, hosts, first, start)
        self.record = record
        self.controls.open(self._known(hosts), record)
        try:
            code = self._run(first)
        except (ValueError, OSError) as error:
            record.end("failed", str(error))
            raise
        finally:
            self.controls.close()
        asked = code == STOPPED or self.executor.agreement.end.anywhere or self._end_unsaved
        record.end("stopped" if asked else "finished")
        return code

    def _run(self, first: int) -> int:
        with self._log(first) as log:
            self.beacon.first_step = first
            self.callbacks.call("on_start", step=first)
            code = 0 if self._steps(first, log) else STOPPED
            self.saver.wait()
            self._tell_of_checkpoints()
            if code == 0:
                last = max(self.beacon.step, first - 1)
                self.say(self.evaluation.log_last(last, self.executor, log), "strong")
                self._tell_of_evaluation()
        self.saver.end(self.beacon.step + 1)
        if code == 0:
            self._compare()
        self.callbacks.call("on_stop")
        return code

    def _steps(self, step: int, log: StepLog) -> bool:
        """Run from a step to the last, or to where a callback ends it; return False where a signal
        did."""
        while step < self.options.steps:
            try:
                row = self._step(step, log)
            except BadStepError as error:
                step = self._roll_back(step, log, error)
                continue
            self.saver.check()
            self.callbacks.step_end(row)
            if self.evaluation.due_after(step):
                self.evaluation.log(step, self.executor, log)
                self._tell_of_evaluation()
            self._obey(step, log)
            self.saver.after(step)
            self._tell_of_checkpoints()
            asked = self.executor.agreement
            if self._end_unsaved:
                self.say(f"stopped by meshwright control after step {step}, not saved")
                return True
            if asked.stop.anywhere or asked.end.anywhere:
                self._say_stopped(step)
                return not asked.stop.anywhere
            if asked.save.anywhere:
                self.callbacks.requests.save = False
            step += 1
        return True

    def _say_stopped(self, step: int) -> None:
        who = "signal" if self.executor.agreement.stop.anywhere else "callback or command"
        self.saver.wait()
        self.say(
            f"stopped by a {who} after step {step}, saved; the same command goes on, or "
            f"meshwright resume {self.out}"
        )

    def _tell_of_evaluation(self) -> None:
        if self.evaluation.last_loss is not None:
            self.callbacks.call("on_evaluation", eval_loss=self.evaluation.last_loss)

    def _tell_of_checkpoints(self) -> None:
        for path in self.saver.newly_written():
            self.callbacks.call("on_save", checkpoint=path)

    def _step(self, step: int, log: StepLog) -> dict[str, float | int | None]:
        """Run one step; return its row of the log."""
        started = time.perf_counter()
        self.beacon.step = step
        self.executor.beacon.mark("DATA")
        self._cast_flags()
        rows = self.feed.take(step)
        lr = rate_of(step, self.options)
        loss, norm = self.executor.train_step(
            self.feed.micro_batches(rows, step), rows.label_count, lr
        )
        self.guard.saw(loss)
        self._say_compiled()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.step_ms.append((time.perf_counter() - started) * 1e3)
        self.controls.row = log.step(
            step,
            loss=loss,
            lr=lr,
            grad_norm=norm,
            tokens=self.feed.tokens,
            tokens_seen=self.feed.tokens_seen(step + 1),
            step_ms=self.step_ms[-1],
            peak_memory_bytes=peak_memory_bytes(self.device),
        )
        return self.controls.row

    def _known(self, hosts: list[str]) -> dict[str, Any]:
        """Return what a live run tells of itself that no step changes."""
        planned = predicted(self.folder).get("predicted_step_us")
        return {
            "run": str(self.out.resolve()),
            "model": self.layout.model,
            "hosts": hosts,
            "predicted_step_ms": planned and planned / 1e3,
        }

    def _obey(self, step: int, log: StepLog) -> None:
        """Carry out the commands of a user that all ranks learned of in a step, and end a window of
        steps that are looked at."""
        for line in self.windows.after(step):
            self.say(line)
        for command in self.controls.agreed() if self.executor.agreement.commands.anywhere else ():
            values = " ".join(f"{name}={value}" for name, value in command.values.items())
            self.say(f"meshwright control {command.do} {values}".rstrip())
            self._carry_out(command, step, log)

    def _carry_out(self, command: Command, step: int, log: StepLog) -> None:
        asked = self.executor.agreement
        if command.do == "save":
            asked.save.anywhere = True
        elif command.do == "save-stop":
            asked.end.anywhere = True
        elif command.do == "stop":
            self._end_unsaved = True
        elif command.do == "set":
            self._set(with_values(self.options, command.values), log)
        else:
            self.windows.ask(command, step)

    def _set(self, options: RunOptions, log: StepLog) -> None:
        """Go on with other options, which checkpoints and run.json hold from now on."""
        self.options = self.controls.options = options
        self.saver.change(options)
        self.evaluation.options = self.recovery.options = options
        log.print_every = max(1, options.log_every)
        if self.logs:
            self.record.change(self.state.options)

    def _say_compiled(self) -> None:
        """Say how long the functions took that this step compiled."""
        if self.compiler is not None and (said := self.compiler.end()):
            self.say(said)
        replay = self.executor.replay
        if replay is not None and replay.why_not:
            self.say.warn(
                f"no CUDA graphs: {replay.why_not}; the host issues each kernel, "
                "which is slower where rows are few"
            )
            self.executor.replay = None
            self.executor.agreement.unrecorded.here = True

    def _cast_flags(self) -> None:
        """Tell the step what the other ranks are to learn of this one."""
        agreement = self.executor.agreement
        agreement.stop.here = self.stop.wanted
        agreement.write_failed.here = self.saver.failed
        agreement.save.here = self.saver.is_time or self.callbacks.requests.save
        agreement.end.here = self.callbacks.requests.stop
        agreement.commands.here = self.controls.pending
        self.executor.optimizer.loss_limit = self.guard.limit

    def _roll_back(self, step: int, log: StepLog, error: BadStepError) -> int:
        """Return the step to go on from; raise the error where the options say to stop."""
        if self.options.on_nan != "rollback":
            raise error
        self.saver.check()
        self.guard.roll_back(error)
        self.saver.wait()
        back = self.recovery.roll_back(step, error)
        self.saver.turn_back(back)
        log.trim(back)
        return back

    def _log(self, first: int) -> StepLog:
        """Open metrics.jsonl and printed lines on rank 0, nothing elsewhere."""
        peak = peak_flops(self.device)
        if peak:
            self.say(f"mfu of {peak / 1e12:.0f} Tflop/s a card: {MFU_FORMULA}")
        track = self.options.track if self.logs else "none"
        return StepLog(
            self.out / "metrics.jsonl" if self.logs else None,
            flops_per_token=self.layout.flops_per_token,
            peak_flops=peak and peak * mesh.world(),
            say=self.say,
            pace=Pace(self.options.steps),
            print_every=self.options.log_every,
            tracker=open_tracker(track, self.out, asdict(self.options), first),
        )

    def _compare(self) -> None:
        """Say, and keep, what was predicted beside what was measured."""
        peak = peak_memory_bytes(self.device)
        found = fidelity.compare(self.folder, self.step_ms, peak, self.device)
        planned = self.layout.optimizer
        other = self.options.optimizer not in ("", planned)
        for line in fidelity.lines(found, planned if other else ""):
            self.say(line)
        if self.logs:
            (self.out / "fidelity.json").write_text(json.dumps(found, indent=1) + "\n")
