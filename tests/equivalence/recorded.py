"""Let a program record on a CPU what it records as CUDA graphs on a GPU."""

import re
from pathlib import Path

ENGINE = Path("runtime/engine")
# There is no CUDA graph on a CPU: a recording is the call itself, run again on the tensors that it
# was recorded with.
CALLS = "    return lambda call: call\n"
# A recording is the list of operators that the call ran, run again on the same tensors. What a
# recorded call changed is put back, as a CUDA graph runs nothing while it is recorded.
OPERATORS = """    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    collectives = []

    def run(func, args, kwargs):
        found = func(*args, **kwargs)
        if func.namespace == "c10d":  # gloo works in other threads
            torch.distributed.Work.unbox(found[-1]).wait()
        return found

    class Tape(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.calls, self.changed = [], []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            for given, described in zip(args, func._schema.arguments):
                if described.alias_info is not None and described.alias_info.is_write:
                    self.changed += [(x, x.clone()) for x in tree_leaves(given)]
            if func.namespace == "c10d":
                collectives.append(func)
                if len(collectives) == FAILS_AT:
                    raise RuntimeError("no more memory")
            found = run(func, args, kwargs or {})
            self.calls.append((func, args, kwargs or {}, found))
            return found

        def again(self):
            for func, args, kwargs, before in self.calls:
                found = run(func, args, kwargs)
                for old, new in zip(tree_leaves(before), tree_leaves(found)):
                    if isinstance(new, Tensor) and new.data_ptr() != old.data_ptr():
                        old.copy_(new)

    def record(call):
        tape = Tape()
        try:
            with tape:
                call()
        finally:
            for x, before in reversed(tape.changed):
                x.copy_(before)
        return tape.again

    return record
"""


def operators(fails_at: int = 0) -> str:
    """Return what records operators. fails_at: the collective that fails, 0 for none."""
    return OPERATORS.replace("FAILS_AT", str(fails_at))


def record_on_cpu(folder: Path, recording: str = CALLS) -> None:
    """Let a program record. recording: what `cuda_graphs` does."""
    change(folder / "layout.py", r"\n\)\n$", "\n    replays=True,\n)\n")
    change(folder / ENGINE / "executor.py", r'self\.device\.type != "cuda"', "False")
    pattern = r"(?s)    pool, stream = torch\.cuda.*?\n    return record\n"
    change(folder / ENGINE / "replay.py", pattern, recording)


def change(path: Path, pattern: str, text: str) -> None:
    """Put another text in place of what a pattern finds."""
    changed, times = re.subn(pattern, lambda _: text, path.read_text())
    assert times, pattern
    path.write_text(changed)
