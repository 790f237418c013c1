"""Predict steps of many models and plans on one or two H200s, then run them, and compare.

    python benchmarks/pairs.py predict PROGRAMS      here: plans, programs, benchmarks/pairs.csv
    python benchmarks/pairs.py run PROGRAMS OUT      there: one JSON row a pair into the file OUT
    python benchmarks/pairs.py compare OUT           the table, raw and scaled by the slowest card

The pairs stand in benchmarks/pairs.toml. `predict` writes pairs.csv, which is committed before
anything runs. `run` gives each pair a process a card and 110 s; it passes over those that OUT has
and those of more cards than `--cards`. With `--cluster` the predictions are those of a cluster
file, such as a probe's, and go to `--table`.
"""

import argparse
import csv
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TABLE = HERE / "pairs.csv"
FIELDS = ("pair", "model", "rows", "seq", "pins", "cards", "plan", "step_s", "peak_GiB")
LIMIT_S = 110


def _pairs() -> tuple[dict, dict]:
    found = tomllib.loads((HERE / "pairs.toml").read_text(encoding="utf-8"))
    return found["models"], found["pairs"]


def predict(programs: Path, table: Path, cluster: str, only: list[str]) -> None:
    """Plan and compile each pair, and write what is predicted into the table."""
    import meshwright as mw

    models, pairs = _pairs()
    programs.mkdir(parents=True, exist_ok=True)
    for name, figures in models.items():
        lines = [f"{key} = {json.dumps(value)}" for key, value in figures.items()]
        (programs / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    known = {row["pair"]: row for row in read(table)} if table.exists() else {}
    for name, (model, rows, seq, pins, *cards) in pairs.items():
        if only and name not in only:
            continue
        spec = str(programs / f"{model}.toml") if model in models else model
        count = cards[0] if cards else 1
        began = time.perf_counter()
        job = mw.Job(seq=seq, global_batch=rows, dtype="bf16", pins=_pins(pins))
        try:
            plan = mw.plan(spec, cluster=cluster or f"h200:{count}", job=job)
        except mw.MeshwrightError as error:
            print(f"{name}: {error}", flush=True)
            continue
        mw.compile(plan, programs / name)
        told = predicted(plan)
        print(f"{name}: {', '.join(told)} ({time.perf_counter() - began:.0f} s)", flush=True)
        said = (name, model, rows, seq, pins, count, *told)
        known[name] = dict(zip(FIELDS, map(str, said), strict=True))
        write_table(table, FIELDS, [known[pair] for pair in pairs if pair in known])


def predicted(plan: Any) -> tuple[str, str, str]:
    """What the search chose, and the seconds of a step and GiB of the peak that it predicts."""
    costs = dict(plan.costs)
    step, peak = costs["predicted_step_us"] / 1e6, costs["predicted_peak_bytes"] / 2**30
    return _decided(plan.decisions), f"{step:.4f}", f"{peak:.2f}"


def write_table(path: Path, fields: tuple[str, ...], rows: list[dict[str, str]]) -> None:
    """Write the rows as CSV, a line of names first."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)


def _decided(plan: Any) -> str:
    """What the search chose: the schedule's cells aside."""
    away = " offload" if any(piece.offloaded for piece in plan.pieces) else ""
    size = f"{plan.micro_batch} x {plan.num_microbatches}"
    axes = " ".join(f"{axis}={count}" for axis, count in plan.mesh.axes if count > 1)
    zero = f" ZeRO {plan.zero}" if plan.zero else ""
    split = f"{axes}{zero} {plan.schedule_name}, " if axes else ""
    return f"{split}{size}, recompute {plan.recompute}, {plan.precision}{away}"


def _pins(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def run(programs: Path, out: Path, cards: int, limit_s: float, only: list[str]) -> None:
    """Run each pair that `out` does not have yet, until `limit_s` seconds have passed."""
    table, began = {row["pair"]: row for row in read(TABLE)}, time.perf_counter()
    names = [name for name in only or table if (programs / name).is_dir()]
    for count in range(cards, 0, -1):
        steps = {
            name: max(3, min(10, int(12 / float(table[name]["step_s"]))))
            for name in names
            if int(table[name]["cards"]) == count
        }
        left = limit_s - (time.perf_counter() - began)
        measure(programs, steps, out, left, cards=count)


def measure(
    programs: Path,
    steps: dict[str, int],
    out: Path,
    limit_s: float,
    each_s: float = LIMIT_S,
    warmup: int = 2,
    cards: int = 1,
) -> None:
    """Run so many steps of each program that `out` does not have, in a launch of its own."""
    began = time.perf_counter()
    done = {row.get("program") for row in rows_of(out)} if out.exists() else set()
    for name, count in steps.items():
        left = limit_s - (time.perf_counter() - began)
        if name in done or left < each_s / 2:
            continue
        command = [sys.executable, str(HERE / "train_step.py"), str(programs / name), "--reference"]
        command += ["--steps", str(count), "--warmup", str(warmup), "--out", str(out)]
        _launch(name, command, cards, min(each_s, left))
        print(f"-- {time.perf_counter() - began:.0f} s", flush=True)


def _launch(name: str, command: list[str], cards: int, limit_s: float) -> None:
    """Run a process a card; all are killed after so many seconds, or once one has failed."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(cards),
    }
    ranks = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank})
        for rank in map(str, range(cards))
    ]
    until = time.perf_counter() + limit_s
    while any(rank.poll() is None for rank in ranks) and time.perf_counter() < until:
        if any(rank.poll() for rank in ranks):
            break
        time.sleep(0.2)
    ended = [rank.poll() for rank in ranks]
    for rank in ranks:
        rank.kill()
        rank.wait()
    if any(code != 0 for code in ended):
        print(f"{name}: ended with {ended}, None after {limit_s:.0f} s", flush=True)


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def compare(out: Path, table: Path) -> None:
    """Print the table of errors; the reference before a row scales its time."""
    said = {row["pair"]: row for row in read(table)}
    share, lines, errors = 1.0, [], []
    for row in rows_of(out):
        if row["what"] == "reference":
            share = row["matmul_over_catalogue"]
            continue
        told = said[row["program"]]
        step, peak = float(told["step_s"]), float(told["peak_GiB"])
        raw, scaled = step / row["step_s"] - 1, step / share / row["step_s"] - 1
        memory = peak / row["peak_GiB"] - 1
        errors.append((raw, scaled, memory))
        lines.append(
            f"| {row['program']} | {told['rows']} x {told['seq']} | {row['step_s']:.3f} | "
            f"{step:.3f} | {raw:+.1%} | {scaled:+.1%} | {row['peak_GiB']:.2f} | {peak:.2f} | "
            f"{memory:+.1%} |"
        )
    print("| pair | rows x tokens | step s | predicted | error | scaled | peak GiB | predicted |"
          " error |\n" + "|---" * 9 + "|")  # fmt: skip
    print("\n".join(lines))
    for name, column in zip(("raw", "scaled", "memory"), zip(*errors, strict=True), strict=True):
        sizes = [abs(error) for error in column]
        print(f"{name}: median {statistics.median(sizes):.1%}, worst {max(sizes):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("predict", "run", "compare"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="these pairs alone, in this order")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds for run")
    parser.add_argument("--cards", type=int, default=1, help="of the machine at hand, for run")
    parser.add_argument("--cluster", default="", help="predict: this cluster for every pair")
    parser.add_argument("--table", type=Path, default=TABLE, help="predict, compare: this table")
    given = parser.parse_args()
    if given.what == "predict":
        predict(given.paths[0], given.table, given.cluster, given.only)
    elif given.what == "run":
        run(*given.paths, given.cards, given.limit, given.only)
    else:
        compare(given.paths[0], given.table)
