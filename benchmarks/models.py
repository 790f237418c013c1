"""Check language models of the installed `transformers` against the law.

    python benchmarks/models.py [MODEL_TYPE ...] [--out FILE] [--limit S] [--again RESULT]
    python benchmarks/models.py --pairs MODEL_TYPE ... --out FILE      two axes at once, four ranks
    python benchmarks/models.py --options SEED MODEL_TYPE ...     random options of each config
    python benchmarks/models.py images: ...     all image-text models, or images:MODEL_TYPE
    python benchmarks/models.py --table [--out FILE]      what FILE holds, by result and by cause

Each model type gets a tiny config (models_tiny.py) and is planned, compiled and run in float64 on
one device, dp=2, tp=2 and pp=2, beside the stock class under autograd (models_check.py). Without
types: all decoders and encoder-decoders of text that the library has. A type is one line of FILE;
those that FILE has are not run again unless --again names their result ("all": every one). Results:
equal; refused, in one line; wrong; traceback; timeout; no config, where the library refuses the
small sizes.
"""

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections import Counter
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = ROOT / "build" / "models.jsonl"
LIMIT_S = 240.0


def _serve(connection: Connection, pairs: bool) -> None:
    """Check the model types that come, one at a time."""
    warnings.filterwarnings("ignore")
    import torch
    import transformers

    transformers.logging.set_verbosity(50)
    torch.set_num_threads(1)
    from equivalence.pool import Pool
    from models_check import PAIRS, PLANS, check

    pool = Pool()
    while (name := connection.recv()) is not None:
        connection.send(check(name, pool, tuple(PAIRS if pairs else PLANS)))
    pool.stop()


class Checker:
    """A warm process that checks model types; one that is late is replaced."""

    def __init__(self, limit_s: float, pairs: bool) -> None:
        self.limit_s, self.pairs = limit_s, pairs
        self.context = multiprocessing.get_context("spawn")
        self.process: Any = None

    def check(self, name: str) -> dict[str, Any]:
        """Return the row of a model type."""
        began = time.monotonic()
        if self.process is None:
            self._start()
        self.connection.send(name)
        try:
            late = not self.connection.poll(self.limit_s)
            row = None if late else self.connection.recv()
        except EOFError:
            late, row = False, None
        if row is None:
            self.stop()
            how = f"no answer in {self.limit_s:g} s" if late else "the process died"
            row = {"model": name, "result": "timeout" if late else "traceback", "said": how}
        return row | {"seconds": round(time.monotonic() - began, 1), "date": str(date.today())}

    def _start(self) -> None:
        self.connection, theirs = self.context.Pipe()
        self.process = self.context.Process(target=_serve, args=(theirs, self.pairs))
        self.process.start()
        theirs.close()

    def stop(self) -> None:
        """End the process and the ranks that it started."""
        if self.process is not None:
            for child in _children(self.process.pid):
                os.kill(child, 9)
            self.process.kill()
            self.process.join()
            self.process = None


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    """Rows of a file by model type, the last one of each."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row["model"]: row for row in map(json.loads, lines)}


def run(
    names: list[str], path: Path, limit_s: float, again: list[str], pairs: bool = False
) -> None:
    """Check model types and write a line each."""
    known = rows_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    checker = Checker(limit_s, pairs)
    for name in names:
        if name in known and not {known[name]["result"], "all"} & set(again):
            continue
        row = checker.check(name)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        cut = f", tp cuts {row['cut']:.0%}" if "cut" in row else ""
        said = f": {row['said']}" if row.get("said") else ""
        print(f"{name}: {row['result']}{cut} ({row['seconds']} s){said}"[:400], flush=True)
    checker.stop()


def cause_of(row: dict[str, Any]) -> str:
    """What was said, without the names, places and numbers of the model type."""
    said = re.sub(r"(hf:|model )\S+:? ?", "", row.get("said", ""))
    said = re.sub(r" at [\w/.]+:\d+", "", said)
    return re.sub(r"\d[\d.e-]*", "N", said)[:110]


def print_table(path: Path) -> None:
    """Print counts by result, and by cause with the types behind each."""
    rows = list(rows_of(path).values())
    counts = Counter(row["result"] for row in rows)
    print(", ".join(f"{count} {result}" for result, count in counts.most_common()))
    causes: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["result"] != "equal":
            causes.setdefault((row["result"], cause_of(row)), []).append(row["model"])
    for (result, cause), names in sorted(causes.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):3} {result:9} {cause}: {', '.join(names)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S")
    parser.add_argument("--again", action="append", default=[], metavar="RESULT")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--pairs", action="store_true", help="products of two axes, on four ranks")
    parser.add_argument(
        "--options", type=int, metavar="SEED", help="turn on random options of each config"
    )
    given = parser.parse_args()
    if given.table:
        print_table(given.out)
        return
    sys.path[:0] = [str(HERE), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(ROOT / "tests"), *sys.path[2:]])
    from models_images import PREFIX, image_types
    from models_tiny import pair_types, text_types

    options = "" if given.options is None else f"+{given.options}"
    named = image_types() if given.names == [PREFIX] else given.names
    names = [f"{name}{options}" for name in named or text_types() + pair_types()]
    run(names, given.out, given.limit, given.again, given.pairs)


if __name__ == "__main__":
    main()
