"""Traced models of every family, ours and stock, that several folders of tests share."""

import tempfile
from functools import cache
from pathlib import Path

from equivalence.cases import FAMILIES, ModelDraw
from equivalence.draws import draw_model

import meshwright
from meshwright.ir.capture.export import trace
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins

OURS = tuple(f"tiny-{family}" for family in FAMILIES)
STOCK = tuple(f"hf-{family}" for family in FAMILIES)


@cache
def traced(name: str, dtype: str = "f32") -> Traced:
    """A preset, or the stock class of a family by `hf-<family>`; traced once a session."""
    if name in STOCK:
        with tempfile.TemporaryDirectory() as folder:
            draw = ModelDraw(name.removeprefix("hf-"), True, 0, 0)
            drawn = draw_model(draw, Path(folder))
            return trace(drawn.build, name, dtype, drawn.vocab)
    return meshwright.trace(name, dtype=dtype)


def planned(name: str, cluster: str, *pins: str, seq: int = 8, rows: int = 4) -> Plan:
    """The plan of a traced model under pins."""
    return make_plan(
        traced(name),
        parse_cluster(cluster),
        seq=seq,
        global_batch=rows,
        pins=parse_pins(list(pins)),
    )
