"""The step log: metrics.jsonl for programs, one line of text a step for people."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TextIO

from ..atomic_file import write_atomic
from .pace import Pace
from .trackers import Tracker

# Printed beside the number, since houses count differently.
MFU_FORMULA = (
    "mfu = tokens/s * flops per token / peak flops; flops per token = 6 * matmul parameters "
    "(without the embedding table) + 12 * layers * dim * seq, the second term halved for causal "
    "attention; recomputed work does not count"
)


def flops_per_token(
    *, matmul_params: int, layers: int, dim: int, seq: int, halve_causal: bool = True
) -> float:
    """Model flops of one token, forward and backward (PaLM, arXiv 2204.02311, appendix B).

    matmul_params: weights a token is multiplied with, the output head among them and the embedding
    table not, which is looked up; a tied table counts once, as the head. dim: attention width,
    heads * head dim. seq: tokens a query sees before the mask. halve_causal: count the half of the
    score matrix below the diagonal, which is what a causal kernel computes; PaLM counts all of it.
    """
    attention = 12.0 * layers * dim * seq
    return 6.0 * matmul_params + (attention / 2.0 if halve_causal else attention)


class StepLog:
    """Appends rows to a metrics.jsonl and prints them; each row is on disk when the call returns.

    flops_per_token: of the model. peak_flops: flops a second of all devices of the run together,
    or None where unknown: mfu is then null. say: takes the lines of text, None for no text.
    print_every: steps between printed lines; the file has every step. tracker: takes rows too.
    pace: of the whole run, None where its length is not known.
    A resumed run appends; a line that a crash cut short is removed first. path None: writes nothing
    and prints nothing, as on ranks other than 0.
    """

    def __init__(
        self,
        path: Path | str | None,
        *,
        flops_per_token: float,
        peak_flops: float | None,
        say: Callable[[str], None] | None = print,
        print_every: int = 1,
        tracker: Tracker | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.tracker, self.pace = tracker, pace
        self.print_every = max(1, print_every)
        self.flops_per_token, self.peak_flops, self.say = flops_per_token, peak_flops, say
        self._file: TextIO | None = None
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            _drop_torn_line(Path(path))
            self._file = open(path, "a", encoding="utf-8")

    def step(
        self,
        step: int,
        *,
        loss: float,
        lr: float,
        grad_norm: float,
        tokens: int,
        tokens_seen: int,
        step_ms: float,
        peak_memory_bytes: int | None,
    ) -> dict[str, float | int | None]:
        """Log one training step: loss of the global batch, tokens of all ranks, and those of all
        steps up to this one; returns the row."""
        tokens_per_s = tokens / step_ms * 1e3 if step_ms > 0 else None
        row = {
            "step": step,
            "loss": loss,
            "lr": lr,
            "grad_norm": grad_norm,
            "tokens": tokens,
            "tokens_seen": tokens_seen,
            "tokens_per_s": tokens_per_s,
            "step_ms": step_ms,
            "elapsed_s": None if self.pace is None else round(self.pace.elapsed_s, 3),
            "mfu": self._mfu(tokens_per_s),
            "peak_memory_bytes": peak_memory_bytes,
        }
        self._write(row, self._step_line(row) if step % self.print_every == 0 else None)
        return row

    def _step_line(self, row: dict) -> str:
        text = step_text(row)
        return text if self.pace is None else f"{text}  {self.pace.after(row['step'])}"

    def evaluation(
        self,
        step: int,
        *,
        eval_loss: float,
        tokens: int,
        batches: int,
        batches_held_out: int,
        data: str,
    ) -> None:
        """Log a held-out loss after `step` steps over `tokens` labels, in the first `batches` of
        all `batches_held_out` global batches of `data`."""
        row = {
            "step": step,
            "eval_loss": eval_loss,
            "eval_tokens": tokens,
            "eval_batches": batches,
            "eval_batches_held_out": batches_held_out,
            "eval_data": data,
        }
        seen = f"{batches} of {batches_held_out} batches"
        text = f"step {step:6d}  held-out loss {eval_loss:.4f}  {tokens} labels, {seen}"
        self._write(row, text, tracked={"eval_loss": eval_loss})

    def trim(self, step: int) -> None:
        """Drop rows from `step` on: the run goes back to it."""
        if self._file is not None:
            path = Path(self._file.name)
            self._file.close()
            keep_before(path, step)
            self._file = open(path, "a", encoding="utf-8")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self.tracker is not None:
            self.tracker.close()

    def __enter__(self) -> "StepLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _mfu(self, tokens_per_s: float | None) -> float | None:
        if self.peak_flops is None or tokens_per_s is None:
            return None
        return tokens_per_s * self.flops_per_token / self.peak_flops

    def _write(self, row: dict, text: str | None, tracked: dict | None = None) -> None:
        """tracked: the values of the row that a tracker takes, where that is not all of them."""
        if self._file is None:
            return
        # JSON has no NaN: strict readers stop at one. The text line still says nan.
        finite = {name: value if _is_json(value) else None for name, value in row.items()}
        self._file.write(json.dumps(finite, allow_nan=False) + "\n")
        self._file.flush()
        if self.tracker is not None:
            known = {k: v for k, v in (tracked or finite).items() if v is not None and k != "step"}
            self.tracker.row(row["step"], known)
        if self.say is not None and text is not None:
            self.say(text)


def step_text(row: dict) -> str:
    """A step's row as one line of text; what is unknown is left out."""
    parts = [
        f"step {row['step']:6d}",
        f"loss {row['loss']:.4f}",
        f"lr {row['lr']:.2e}",
        f"grad norm {row['grad_norm']:.3f}",
        f"{row['step_ms']:.1f} ms",
    ]
    if row["tokens_per_s"] is not None:
        parts.append(f"{row['tokens_per_s']:.0f} tokens/s")
    if row["mfu"] is not None:
        parts.append(f"mfu {row['mfu']:.1%}")
    if row["peak_memory_bytes"] is not None:
        parts.append(f"peak {row['peak_memory_bytes'] / 2**30:.2f} GiB")
    return "  ".join(parts)


def keep_before(path: Path, step: int) -> None:
    """Keep the rows of steps before `step`; a row that a crash cut short goes too."""
    if not path.exists():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _before(line, step)]
    write_atomic(path, "".join(line + "\n" for line in kept))


def _before(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] < step
    except (ValueError, KeyError, TypeError):
        return False


def _is_json(value: float | int | str | None) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _drop_torn_line(path: Path) -> None:
    """Cut `path` after its last newline: a row is written before its newline, or not at all."""
    if not path.exists():
        return
    with open(path, "rb+") as file:
        kept = file.read().rfind(b"\n") + 1
        if kept < file.seek(0, os.SEEK_END):
            file.truncate(kept)
