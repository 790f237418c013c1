"""Emitted programs of tiny cases, held byte for byte. `make golden` writes them; read its diff."""

from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import pytest

from meshwright.codegen.program import emit
from meshwright.api.identity import identity_of
from meshwright.ir.capture.export import trace
from meshwright.ir.plan import Piece, Plan
from meshwright.ir.traced import Traced
from meshwright.models import PRESETS, DecoderConfig, ModelSource
from meshwright.models.decoder import Decoder
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.planner.remat.rules import SavedSet

FOLDER = Path(__file__).parent
SIZES = {"dim": 16, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 4, "ffn": 32, "vocab": 64}
LLAMA = replace(PRESETS["tiny"], **SIZES)
GEMMA2 = replace(PRESETS["tiny-gemma2"], **SIZES, window=4, window_pattern=(True,), embed_scale=4.0)


@dataclass(frozen=True)
class Golden:
    config: DecoderConfig
    cluster: str
    pins: tuple[str, ...]
    offload: bool = False


CASES = {
    "llama_dp2": Golden(LLAMA, "cpu:2", ("dp=2", "micro_batch=1")),
    "llama_tp2": Golden(LLAMA, "cpu:2", ("tp=2", "shard_weights=1")),
    "llama_pp2_1f1b": Golden(LLAMA, "cpu:2", ("pp=2", "micro_batch=1", "schedule=1f1b")),
    "llama_pp2_zbv": Golden(LLAMA, "cpu:2", ("pp=2", "micro_batch=1", "schedule=zbv")),
    "llama_zero3": Golden(LLAMA, "cpu:2", ("dp=2", "zero=3", "recompute=all")),
    "llama_offload": Golden(LLAMA, "cpu:2", ("pp=2", "micro_batch=1"), offload=True),
    "gemma2_single": Golden(GEMMA2, "cpu:1", ("recompute=none",)),
}


@cache
def _traced(config: DecoderConfig) -> Traced:
    name = "golden-gemma2" if config is GEMMA2 else "golden-llama"
    return trace(partial(Decoder, config), name, "f32", config.vocab)


def _plan(case: Golden) -> Plan:
    given = _traced(case.config), parse_cluster(case.cluster)
    pins, sizes = parse_pins(list(case.pins)), {"seq": 8, "global_batch": 4}
    plan = make_plan(*given, **sizes, pins=pins)
    source = ModelSource(plan.model, case.config.vocab, None, partial(Decoder, case.config), case.config)
    identity = identity_of(source, given[0]).text()
    if not case.offload:
        return replace(plan, identity=identity)
    kept = tuple(_offloading(plan.piece(i.piece)) for i in plan.instances)
    return replace(make_plan(*given, **sizes, pins=pins, saved=kept), identity=identity)


def _offloading(piece: Piece) -> SavedSet:
    """All that a piece saves but its first value, and its input."""
    entry = tuple(i.value.name for i in piece.graph.inputs_of("activation"))
    return SavedSet(piece.saved, entry + piece.saved[1:])


def _kept(files: dict[str, str]) -> dict[str, str]:
    """What differs from case to case; the rest of a program is the same for all."""
    shown = {name: text for name, text in files.items() if name.startswith("stage_")}
    return shown | {name: files[name] for name in ("layout.py", "schedule.py", "plan.txt")}


@pytest.mark.parametrize("name", CASES)
def test_the_emitted_program_is_the_golden_one(name: str, update_golden: bool) -> None:
    files, folder = _kept(emit(_plan(CASES[name]))), FOLDER / name
    if update_golden:
        _write(folder, files)
    for file, text in files.items():
        path = folder / file
        assert path.is_file(), f"{path} is missing; write it with make golden"
        assert path.read_text() == text, f"{path} differs; if that is meant, run make golden"
    stale = sorted({path.name for path in folder.iterdir()} - set(files))
    assert not stale, f"{folder} holds {stale}, which nothing emits; run make golden"


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize("name", CASES)
def test_planning_and_emitting_twice_give_the_same_bytes(name: str) -> None:
    assert emit(_plan(CASES[name])) == emit(_plan(CASES[name]))


def test_tracing_twice_gives_the_same_bytes() -> None:
    case = CASES["llama_dp2"]
    first = emit(_plan(case))
    _traced.cache_clear()
    assert emit(_plan(case)) == first


@pytest.mark.parametrize("name", CASES)
def test_ranks_of_a_stage_share_one_text(name: str) -> None:
    plan = _plan(CASES[name])
    stages = [file for file in emit(plan) if file.startswith("stage_")]
    assert stages == [f"stage_{stage:02d}.py" for stage in range(plan.num_stages)]
