"""Which checkpoint a run goes on from: one for all ranks, whatever each sees of the folder."""

import shutil
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.runtime.checkpoint import manifest
from meshwright.runtime.engine import mesh

WORLD = 2


def _rank(rank: int, meeting: str, folder: Path, found: Queue) -> None:
    """Looks into a folder of its own; rank 0's has a checkpoint more, published just now."""
    where = f"file://{meeting}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=WORLD)
    mesh.start({"dp": WORLD}, torch.device("cpu"))
    manifest._read = lambda path, shows: path.name  # type: ignore[assignment,return-value]
    found.put((rank, manifest.newest_good(folder / str(rank))[0]))
    dist.barrier()


def test_all_ranks_take_the_checkpoint_that_rank_0_sees(tmp_path: Path) -> None:
    for rank, steps in enumerate(((4, 8), (4,))):
        for step in steps:
            manifest.folder_of(tmp_path / str(rank), step).mkdir(parents=True)
    context = get_context("fork")
    found = context.Queue()
    meeting = str(tmp_path / "meeting")
    ranks = [
        context.Process(target=_rank, args=(rank, meeting, tmp_path, found))
        for rank in range(WORLD)
    ]
    for process in ranks:
        process.start()
    names = dict(found.get(timeout=60) for _ in ranks)
    for process in ranks:
        process.join()
    assert names == {0: "step_00000008", 1: "step_00000008"}


def test_only_checkpoints_count_and_by_number(tmp_path: Path) -> None:
    """A copy that a person made, or what a dead attempt left, is neither read nor removed."""
    for name in ("step_100000000", "step_00000002", "step_00000002.part", "step_00000002.bak", "x"):
        (tmp_path / name).mkdir()
    names = [path.name for path in manifest.complete(tmp_path)]
    assert names == ["step_00000002", "step_100000000"]
    shutil.rmtree(tmp_path)
    assert manifest.complete(tmp_path) == []
