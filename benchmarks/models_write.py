"""Write what models.py found into models/classes.json and docs/models.md.

python benchmarks/models_write.py [RESULTS]           RESULTS: build/models.jsonl by default
"""

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from models_tiny import pair_types

from meshwright.models.classes import RESULTS, Classes, checked_classes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = ROOT / "build" / "models.jsonl"

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- classes: written by benchmarks/models_write.py -->", "<!-- end of classes -->"
_LONGEST = 200


def _rows(path: Path) -> list[dict[str, Any]]:
    """The last row of each model type."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return list({row["model"]: row for row in rows}.values())


def write_results(rows: list[dict[str, Any]]) -> None:
    """Write the file that comes with the package."""
    pairs = pair_types()
    classes = [
        {
            "model_type": row["model"],
            "result": row["result"],
            "cut": round(row["cut"], 4) if "cut" in row else None,
            "said": _said(row),
            "date": row["date"],
            **({"pairs": True} if row["model"] in pairs else {}),
        }
        for row in sorted(rows, key=lambda row: row["model"])
    ]
    lines = ",\n    ".join(json.dumps(row) for row in classes)
    versions = {"transformers": version("transformers"), "torch": version("torch").split("+")[0]}
    head = json.dumps(versions)[1:-1]
    RESULTS.write_text(f'{{{head}, "classes": [\n    {lines}\n]}}\n', encoding="utf-8")


def _said(row: dict[str, Any]) -> str:
    """What was said, without the name of the model and the advice that ends it."""
    said = re.sub(rf"(model )?hf(-images)?:{row['model']}:? ", "", row.get("said", ""))
    said = re.sub(r"\S*/site-packages/transformers/models/", "", said)
    said = re.sub(r" Its forward does what capture does not follow;.*", "", said)
    return said if len(said) <= _LONGEST else said[: _LONGEST - 3].rstrip() + "..."


def page_text(found: Classes) -> str:
    """Return what docs/models.md says of the classes."""
    parts = [found.part(images) for images in (False, True)]
    return "\n\n".join(map(_part_text, filter(lambda part: part.checked, parts)))


def _part_text(found: Classes) -> str:
    counts = ", ".join(f"{count} {result}" for result, count in found.counts().items())
    equal = [row.model_type for row in found.checked if row.result == "equal"]
    others = [row for row in found.checked if row.result not in ("equal", "no config")]
    lacking = [row.model_type for row in found.checked if row.result == "no config"]
    none = _wrapped("The tiny config is refused by the library, or too large, of: ", lacking)
    few = [
        f"{r.model_type} {r.cut:.0%}" for r in found.checked if r.cut is not None and r.cut < 0.8
    ]
    cut = ["", *_wrapped("Of these tp=2 cuts below 80% of the bytes of matmul weights: ", few)]
    lines = [
        f"All {found.kinds} of transformers {found.transformers}, each from a tiny",
        "config, float64, on one device, dp=2, tp=2 and pp=2, two steps beside the stock class",
        f"under autograd (torch {found.torch}, {found.dates}): **{counts}**.",
        "`meshwright models classes` prints them with what tp=2 cuts; `python benchmarks/models.py "
        "MODEL_TYPE` checks one again.",
        "",
        *_wrapped("Equal to 1e-9 on all four: ", equal),
        *(cut if few else []),
        *(["", *none] if lacking else []),
        "",
        "| class | result | what was said |",
        "|---|---|---|",
        *(f"| {r.model_type} | {r.result} | {_cell(r.said)} |" for r in others),
    ]  # fmt: skip
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _wrapped(head: str, names: list[str], width: int = 118) -> list[str]:
    """Return a sentence that ends in a list of names, in lines of a width."""
    lines, line = [], head
    for name in names:
        word = f"{name}, " if name != names[-1] else f"{name}."
        if len(line) + len(word) > width:
            lines.append(line.rstrip())
            line = ""
        line += word
    return [*lines, line]


def write_page(found: Classes) -> None:
    """Put the text between its marks in docs/models.md."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{page_text(found)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_results(_rows(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT))
    write_page(checked_classes())
