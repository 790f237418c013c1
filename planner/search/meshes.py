"""Placements of all compute meshes and the options of their pieces, shared out over processes.

They are the same whoever makes them. A mesh that a process could not make is made by the search.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection

from meshwright.ir.errors import MeshwrightError
from meshwright.ir.mesh import Mesh

from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .forked import can_fork, several

Job = tuple[Mesh, list[Candidate]]  # a compute mesh, and the candidates on it


def make_meshes(
    costs: CandidateCosts, limit: float, space: Sequence[Candidate], processes: int
) -> None:
    """Solve the placements of all candidates, and price the options that their lower bounds need.

    processes: the most that work at once, this one among them. Makes nothing where fewer than two
    meshes are left to place: the search places those itself.
    """
    by_mesh: dict[Mesh, list[Candidate]] = {}
    for c in space:
        by_mesh.setdefault(c.compute, []).append(c)
    jobs = sorted(by_mesh.items(), key=lambda job: (job[0].num_devices == 1, job[0].axes))
    long = [mesh for mesh, _ in jobs if mesh.num_devices > 1 and not costs.is_placed(mesh)]
    others = min(processes, len(long)) - 1
    if others > 0 and can_fork():
        _shared_out(costs, limit, jobs, others)


def _shared_out(costs: CandidateCosts, limit: float, jobs: list[Job], others: int) -> None:
    """Make jobs here and in other processes, each of which takes the next one when it is free."""
    with (
        _queue(len(jobs)) as queue,
        several(partial(_serve, costs, limit, jobs, queue), others) as forked,
    ):
        for job in _taken(jobs, queue):
            _make(costs, limit, job)
        with costs.memo.clock.layer("placements"):
            for one in forked:
                with suppress(EOFError, OSError):
                    costs.take(one.pipe.recv())


@contextmanager
def _queue(count: int) -> Iterator[int]:
    """Give what processes read the numbers of jobs from, each number once."""
    queue, numbers = os.pipe()
    os.write(numbers, bytes(range(min(count, 256))))
    os.close(numbers)
    try:
        yield queue
    finally:
        os.close(queue)


def _taken(jobs: list[Job], queue: int) -> Iterator[Job]:
    while number := os.read(queue, 1):
        yield jobs[number[0]]


def _serve(
    costs: CandidateCosts, limit: float, jobs: list[Job], queue: int, pipe: Connection
) -> None:
    made = [job for job in _taken(jobs, queue) if _make(costs, limit, job)]
    pipe.send(costs.given([mesh for mesh, _ in made]))


def _make(costs: CandidateCosts, limit: float, job: Job) -> bool:
    """Make what floors read; return whether it could be made."""
    mesh, candidates = job
    with suppress(MeshwrightError):
        costs.sharding(mesh)
        for c in candidates:
            if costs.stored_bytes(c) <= limit:
                costs.options(c.unsplit)
        return True
    return False
