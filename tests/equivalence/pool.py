"""A pool of worker processes that outlives the cases: a fresh set costs seconds each."""

import multiprocessing
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from equivalence.worker import Job, RankResult, serve

# After one rank failed, the others get this long to fail of it; then the pool starts anew.
GRACE_S = 5.0


class PoolError(RuntimeError):
    """A rank raised, died, or did not answer in time."""


class Pool:
    """Worker processes, started when a job first needs them."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.workers: list[tuple[BaseProcess, Connection]] = []

    def run(self, job: Job) -> list[RankResult]:
        """Every rank's result, by rank. Raises PoolError with the first rank's traceback."""
        while len(self.workers) < job.world:
            self._start()
        used = self.workers[: job.world]
        for rank, (_, connection) in enumerate(used):
            connection.send((rank, job))
        return self._collect([connection for _, connection in used], job.timeout_s)

    def _start(self) -> None:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self.workers.append((process, ours))

    def _collect(self, connections: list[Connection], timeout_s: float) -> list[RankResult]:
        answers: dict[int, RankResult] = {}
        errors: list[str] = []
        waiting = {id(c): rank for rank, c in enumerate(connections)}
        deadline = time.monotonic() + timeout_s
        while waiting and (left := deadline - time.monotonic()) > 0:
            for connection in wait([c for c in connections if id(c) in waiting], left):
                rank = waiting.pop(id(connection))
                result, error = _receive(connection)  # type: ignore[arg-type]
                if result is None:
                    errors.append(f"rank {rank}: {error}")
                    deadline = min(deadline, time.monotonic() + GRACE_S)
                else:
                    answers[rank] = result
        if errors or waiting:
            self.stop()
            silent = f"no answer in {timeout_s:g} s from ranks {sorted(waiting.values())}"
            raise PoolError("\n".join(errors) or silent)
        return [answers[rank] for rank in sorted(answers)]

    def stop(self) -> None:
        """End every worker; the next job starts new ones."""
        for process, connection in self.workers:
            process.kill()
            process.join()
            connection.close()
        self.workers.clear()


def _receive(connection: Connection) -> tuple[RankResult | None, str]:
    try:
        return connection.recv()
    except (EOFError, ConnectionError):
        return None, "the process died"
