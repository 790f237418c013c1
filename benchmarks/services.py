"""What the services around a step cost: on and off by turns in one run of a program.

    python benchmarks/services.py PROGRAM [--pairs 6] [--steps 6] [--data random:32000]

One process, one device. A block is --steps steps; blocks alternate between services on (marks of
each action, the endpoint with a client that asks it once a second, health of the GPUs every second,
a row of the log on disk a step) and off. The first step of a block is left out. Prints the median
step of each block, and of the pairs' ratios the median and the spread.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--data", default="random:256")
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    sys.path.insert(0, str(given.program))
    with tempfile.TemporaryDirectory() as folder:
        blocks = _run(given, Path(folder) / "run")
    on, off = blocks[1::2], blocks[2::2]
    ratios = [a / b for a, b in zip(on, off, strict=False)]
    print(f"on  {' '.join(f'{ms:.2f}' for ms in on)} ms")
    print(f"off {' '.join(f'{ms:.2f}' for ms in off)} ms")
    spread = f"{min(ratios) - 1:+.2%} to {max(ratios) - 1:+.2%}"
    print(f"services cost {statistics.median(ratios) - 1:+.3%} of a step ({spread})", flush=True)


def _of(name: str) -> Any:
    """Return a module of the program's own copy of the runtime."""
    return import_module(f"runtime.{name}")


def _run(given: argparse.Namespace, out: Path) -> list[float]:
    """Return the median milliseconds of a step of each block; the first warms up."""
    mesh, no_marks = _of("engine.mesh"), _of("engine.executor").NoMarks()
    layout = _of("training.program").load_layout(given.program)
    total = given.steps * (2 * given.pairs + 1)
    words = {"data": given.data, "steps": total, "save_minutes": 0.0, "out": str(out)}
    words |= {"eval_batches": 1, "no_compile": given.no_compile, "log_every": total}
    options = _of("training.options").run_options(words)
    device = _of("launch.worker").own_device(gpus=True)
    mesh.start(layout.mesh, device, timedelta(seconds=600))
    beacon = _of("launch.heartbeat").Beacon(out / "beats", 0)
    stop: Any = type("Stop", (), {"wanted": False})()
    say = _of("metrics.printed").Printed(sys.stdout)
    make = _of("training.trainer").Trainer
    trainer = make(
        given.program, layout, options, beacon, stop, say, logs=True, write_limit_s=600.0
    )
    services = _Services(out, trainer)
    step, times = trainer._step, []

    def timed(number: int, log: Any) -> Any:
        block, within = divmod(number, given.steps)
        if within == 0:
            services.turn(on=block % 2 == 1)
            trainer.executor.beacon = beacon if block % 2 == 1 else no_marks
            log._file = services.log_file(log._file, on=block % 2 == 1)
            times.append([])
        row = step(number, log)
        if within:
            times[-1].append(trainer.step_ms[-1])
        return row

    trainer._step = timed  # type: ignore[method-assign]
    trainer.train()
    return [statistics.median(block) for block in times]


class _Services:
    """Client of the endpoint and sampler of health, started and ended with each block."""

    def __init__(self, out: Path, trainer: Any) -> None:
        self.out, self.trainer = out, trainer
        self.over = threading.Event()
        self.kept: Any = None

    def turn(self, *, on: bool) -> None:
        self.over.set()
        if on:
            self.over = threading.Event()
            threading.Thread(target=self._ask, args=(self.over,), daemon=True).start()

    def log_file(self, file: Any, *, on: bool) -> Any:
        """Return the file that the log is to write to: its own, or the null device."""
        self.kept = self.kept or file
        return self.kept if on else open("/dev/null", "w")

    def _ask(self, over: threading.Event) -> None:
        read, client = _of("metrics.health").reader(), _of("control.client")
        while not over.is_set():
            address = _of("control.address").read_address(self.out)
            if address is not None:
                json.dumps(client.status_of(address))
            if read is not None:
                read()
            time.sleep(1.0)


if __name__ == "__main__":
    main()
