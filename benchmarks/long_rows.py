"""Rows of 65,536 tokens of llama-7b over two H200s by context, tensor and pipeline: predict, run.

    python benchmarks/long_rows.py write FOLDER           here: plans, programs, long_rows.csv
    python benchmarks/long_rows.py run FOLDER OUT         there: one JSON row a program into OUT
    python benchmarks/long_rows.py compare OUT            the table

A step has one row. `write` plans for devices of 131 GiB, 93% of an H200, and once more unpinned;
its table is committed before a run. `run` needs torch alone, gives each program a launch of its own
and 140 s, and passes over those that OUT has.
"""

import argparse
import json
from pathlib import Path

from pairs import measure, predicted, read, rows_of, write_table

HERE = Path(__file__).resolve().parent
TABLE = HERE / "long_rows.csv"
FIELDS = ("program", "pins", "plan", "step_s", "peak_GiB")
CARDS, SEQ, LIMIT_S = 2, 65536, 140
MEMORY = "131GiB"
PURE = {"precision": "pure", "rounding": "nearest"}
# In the order in which they run: what a short loan leaves out is the least asked for.
PROGRAMS: dict[str, dict[str, str]] = {
    "cp": {"cp": "2"},
    "tp": {"tp": "2"},
    "pp": {"pp": "2"},
    "cp-pure": {"cp": "2"} | PURE,
    "tp-pure": {"tp": "2"} | PURE,
    "pp-pure": {"pp": "2"} | PURE,
}
FREE: dict[str, dict[str, str]] = {"free": {}, "free-pure": PURE}


def write(folder: Path) -> None:
    """Plan all, compile those that run, and write what is predicted."""
    import meshwright as mw

    folder.mkdir(parents=True, exist_ok=True)
    spec = folder / "llama-7b-65536.toml"
    spec.write_text(f'preset = "llama-7b"\nmax_seq = {SEQ}\n', encoding="utf-8")
    cluster, found = mw.Cluster(f"h200:{CARDS}", gpu_memory=MEMORY), []
    for name, pins in (PROGRAMS | FREE).items():
        job = mw.Job(seq=SEQ, global_batch=1, dtype="bf16", pins=pins)
        plan = mw.plan(str(spec), cluster=cluster, job=job)
        if name in PROGRAMS:
            mw.compile(plan, folder / name)
        said = " ".join(f"{key}={value}" for key, value in pins.items())
        found.append((name, said, *predicted(plan)))
        print(*found[-1], sep=", ", flush=True)
        write_table(TABLE, FIELDS, [dict(zip(FIELDS, row, strict=True)) for row in found])


def run(folder: Path, out: Path, limit_s: float, only: list[str]) -> None:
    """Run each program that `out` does not have yet, as long as `limit_s` seconds allow."""
    table = {row["program"]: float(row["step_s"]) for row in read(TABLE)}
    names = [name for name in only or PROGRAMS if (folder / name).is_dir()]
    steps = {name: max(2, min(4, int(26 / table[name]))) for name in names}
    measure(folder, steps, out, limit_s, each_s=LIMIT_S, warmup=1, cards=CARDS)


def compare(out: Path) -> None:
    """Print what was predicted beside what was measured, and each step over that of cp."""
    told = {row["program"]: row for row in read(TABLE)}
    found = {row["program"]: row for row in rows_of(out) if row["what"] != "reference"}
    print("| program | plan | step s | predicted | error | peak GiB | predicted | error | of cp |\n"
          + "|---" * 9 + "|")  # fmt: skip
    for name, row in found.items():
        step, peak = float(told[name]["step_s"]), float(told[name]["peak_GiB"])
        first = found.get(name.replace("tp", "cp").replace("pp", "cp"))
        over = f"{row['step_s'] / first['step_s']:.3f}" if first else ""
        print(
            f"| {name} | {told[name]['plan']} | {row['step_s']:.3f} | {step:.3f} | "
            f"{step / row['step_s'] - 1:+.1%} | {row['peak_GiB']:.2f} | {peak:.2f} | "
            f"{peak / row['peak_GiB'] - 1:+.1%} | {over} |"
        )
    shares = [row["matmul_over_catalogue"] for row in rows_of(out) if row["what"] == "reference"]
    print(f"matmuls over the catalogue's: {json.dumps(shares)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("write", "run", "compare"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="these programs alone, in this order")
    parser.add_argument("--limit", type=float, default=570.0, help="seconds for run")
    given = parser.parse_args()
    if given.what == "write":
        write(given.paths[0])
    elif given.what == "run":
        run(*given.paths, given.limit, given.only)
    else:
        compare(given.paths[0])
