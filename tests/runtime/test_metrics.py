"""The step log: rows that any JSON reader takes, and the MFU formula by hand."""

import io
import json
from functools import partial
from pathlib import Path

import pytest

from meshwright.runtime.metrics.step_log import StepLog, flops_per_token

STEP = {
    "loss": 2.5,
    "lr": 1e-3,
    "grad_norm": 0.5,
    "tokens": 1024,
    "tokens_seen": 4096,
    "step_ms": 512.0,
}


def open_log(path: Path, peak_flops: float | None = 1e9, stream: io.StringIO | None = None):
    say = partial(print, file=stream) if stream else None
    return StepLog(path, flops_per_token=1e5, peak_flops=peak_flops, say=say)


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_step_writes_every_field_and_one_line_of_text(tmp_path: Path) -> None:
    path, stream = tmp_path / "run" / "metrics.jsonl", io.StringIO()
    with open_log(path, stream=stream) as log:
        row = log.step(3, peak_memory_bytes=2**30, **STEP)
        assert rows(path) == [row], "on disk before the log is closed"
    assert row == {
        "step": 3,
        "loss": 2.5,
        "lr": 1e-3,
        "grad_norm": 0.5,
        "tokens": 1024,
        "tokens_seen": 4096,
        "elapsed_s": None,
        "tokens_per_s": 2000.0,
        "step_ms": 512.0,
        "mfu": pytest.approx(0.2),
        "peak_memory_bytes": 2**30,
    }
    assert stream.getvalue() == (
        "step      3  loss 2.5000  lr 1.00e-03  grad norm 0.500  512.0 ms  2000 tokens/s"
        "  mfu 20.0%  peak 1.00 GiB\n"
    )


def test_mfu_is_null_where_the_peak_is_unknown(tmp_path: Path) -> None:
    stream = io.StringIO()
    with open_log(tmp_path / "m.jsonl", peak_flops=None, stream=stream) as log:
        log.step(0, peak_memory_bytes=None, **STEP)
    (row,) = rows(tmp_path / "m.jsonl")
    assert row["mfu"] is None and row["peak_memory_bytes"] is None
    assert "mfu" not in stream.getvalue() and "peak" not in stream.getvalue()


def test_an_evaluation_row_carries_the_held_out_loss(tmp_path: Path) -> None:
    with open_log(tmp_path / "m.jsonl") as log:
        log.evaluation(7, eval_loss=1.25, tokens=99, batches=2, batches_held_out=5, data="demo")
    assert rows(tmp_path / "m.jsonl") == [
        {
            "step": 7,
            "eval_loss": 1.25,
            "eval_tokens": 99,
            "eval_batches": 2,
            "eval_batches_held_out": 5,
            "eval_data": "demo",
        }
    ]


def test_a_loss_that_is_no_number_stays_valid_json_and_is_seen_in_text(tmp_path: Path) -> None:
    stream = io.StringIO()
    with open_log(tmp_path / "m.jsonl", stream=stream) as log:
        log.step(0, peak_memory_bytes=None, **{**STEP, "loss": float("nan")})
    assert rows(tmp_path / "m.jsonl")[0]["loss"] is None
    assert "loss nan" in stream.getvalue()


def test_a_resumed_log_appends_and_drops_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    for step, torn in ((0, '{"step": 1, "lo'), (1, "")):
        with open_log(path) as log:
            log.step(step, peak_memory_bytes=None, **STEP)
        with open(path, "a") as file:
            file.write(torn)
    assert [row["step"] for row in rows(path)] == [0, 1]


def test_flops_per_token_by_hand() -> None:
    sizes = {"matmul_params": 1000, "layers": 2, "dim": 8, "seq": 16}
    assert flops_per_token(**sizes, halve_causal=False) == 6000 + 12 * 2 * 8 * 16
    assert flops_per_token(**sizes) == 6000 + 6 * 2 * 8 * 16
