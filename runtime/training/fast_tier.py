"""The fast tier of a run's checkpoints, opened by its options and by what its folder says."""

import secrets
from pathlib import Path

from ..checkpoint.fast import FastTier, host_folder, ranks_here
from ..checkpoint.manifest import rank, text_of_rank_0
from ..node_path import expanded
from .options import RunOptions
from .past_run import RunError, read_run


def open_fast_tier(options: RunOptions) -> FastTier | None:
    """Return the fast tier of a run, None of one without. To be called on all ranks. Raises
    NodePathError where this node lacks what its path names."""
    if not options.fast_dir:
        return None
    out, folder = Path(options.out), expanded("--fast-dir", options.fast_dir)
    start = text_of_rank_0(secrets.token_hex(8))
    starts = _starts(out) if rank() == 0 else []
    return FastTier(host_folder(folder, out), out, ranks_here(), start, starts)


def _starts(out: Path) -> list[tuple[str, int]]:
    """Return the id and the first step of each start of the run in a folder, the oldest first."""
    try:
        return [(str(s.get("id", "")), int(s["step"])) for s in read_run(out).said["starts"]]
    except (RunError, KeyError, TypeError, ValueError):
        return []
