"""Placements on compute meshes and the options of their pieces, shared out over processes.

They are the same whoever makes them. What a process could not make is made by the search.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

from meshwright.ir.errors import MeshwrightError
from meshwright.ir.mesh import Mesh

from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .forked import can_fork, several


@dataclass(frozen=True)
class Job:
    """A compute mesh, the costs that it is placed by, and the candidates on it."""

    costs: CandidateCosts
    mesh: Mesh
    candidates: list[Candidate]


def make_meshes(
    costs: CandidateCosts, limit: float, space: Sequence[Candidate], processes: int
) -> None:
    """Solve the placements of all candidates, and price the options that their lower bounds need.
    processes: the most that work at once, this one among them."""
    by_mesh: dict[Mesh, list[Candidate]] = {}
    for c in space:
        by_mesh.setdefault(c.compute, []).append(c)
    jobs = sorted(by_mesh.items(), key=lambda job: (job[0].num_devices == 1, job[0].axes))
    make_jobs([Job(costs, *job) for job in jobs], limit, processes)


def make_jobs(jobs: Sequence[Job], limit: float, processes: int) -> None:
    """Make jobs in several processes, 256 at most. Makes nothing where fewer than two meshes are
    left to place: the search places those itself."""
    jobs = jobs[:256]
    long = [job for job in jobs if job.mesh.num_devices > 1 and not job.costs.is_placed(job.mesh)]
    others = min(processes, len(long)) - 1
    if others > 0 and can_fork():
        _shared_out(limit, jobs, others)


def _shared_out(limit: float, jobs: Sequence[Job], others: int) -> None:
    """Make jobs here and in other processes, each of which takes the next one when it is free."""
    with (
        _queue(len(jobs)) as queue,
        several(partial(_serve, limit, jobs, queue), others) as forked,
    ):
        for number in _taken(queue):
            _make(limit, jobs[number])
        with jobs[0].costs.memo.clock.layer("placements"):
            for one in forked:
                with suppress(EOFError, OSError):
                    for number, made in one.pipe.recv():
                        jobs[number].costs.take(jobs[number].mesh, made)


@contextmanager
def _queue(count: int) -> Iterator[int]:
    """Give what processes read the numbers of jobs from, each number once."""
    queue, numbers = os.pipe()
    os.write(numbers, bytes(range(count)))
    os.close(numbers)
    try:
        yield queue
    finally:
        os.close(queue)


def _taken(queue: int) -> Iterator[int]:
    while number := os.read(queue, 1):
        yield number[0]


def _serve(limit: float, jobs: Sequence[Job], queue: int, pipe: Connection) -> None:
    made = [number for number in _taken(queue) if _make(limit, jobs[number])]
    pipe.send([(number, jobs[number].costs.given(jobs[number].mesh)) for number in made])


def _make(limit: float, job: Job) -> bool:
    """Make what floors read; return whether it could be made."""
    with suppress(MeshwrightError):
        job.costs.sharding(job.mesh)
        for c in job.candidates:
            if job.costs.stored_bytes(c) <= limit:
                job.costs.options(c.unsplit)
        return True
    return False
