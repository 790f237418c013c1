"""Stock encoder-decoders: as the library trains them on sources and labels, under every plan."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from equivalence.boxes import assemble
from equivalence.oracle import Widened
from equivalence.pool import Pool
from equivalence.worker import Job
from layer_drop import skip_where_drawn
from torch import Tensor, nn
from transformers.models.bart import modeling_bart

import meshwright as mw
from meshwright.api.programs import write_program
from meshwright.ir.capture.export import trace
from meshwright.ir.capture.initialisers import default_dtype
from meshwright.ir.plan import Plan
from meshwright.ir.sizes import evaluate
from meshwright.ir.traced import Traced
from meshwright.models import load_model
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.runtime.data import NOTHING
from meshwright.runtime.engine.initial import initial_value
from meshwright.runtime.optimizers.options import OptimizerOptions

VOCAB, SEQ, ROWS, STEPS, RATE, IGNORED = 64, 8, 4, 2, 0.1, -100
CONFIGS = {
    "t5": transformers.T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=1,
        num_heads=4, relative_attention_num_buckets=4, relative_attention_max_distance=6,
        dropout_rate=0.0, pad_token_id=0, decoder_start_token_id=3,
        architectures=["T5ForConditionalGeneration"],
    ),
    "bart": transformers.BartConfig(
        vocab_size=VOCAB, d_model=32, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=48,
        decoder_ffn_dim=48, encoder_attention_heads=4, decoder_attention_heads=4, dropout=0.0,
        max_position_embeddings=16, pad_token_id=1, decoder_start_token_id=2,
        architectures=["BartForConditionalGeneration"],
    ),
}  # fmt: skip
PLANS = {
    "dp": {"dp": 2, "micro_batch": 1, "zero": 2},
    "tp": {"tp": 2, "shard_weights": True},
    "pp": {"pp": 2, "micro_batch": 1},
    "cp": {"cp": 2, "recompute": "all"},
}
_ONE_STEP = OptimizerOptions(name="sgd", momentum=0.0, weight_decay=0.0, clip=0.0)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Traced]:
    @cache
    def traced(name: str) -> Traced:
        folder = tmp_path_factory.mktemp(name)
        CONFIGS[name].save_pretrained(folder)
        return trace(load_model(f"hf:{folder}").build, name, "f64", VOCAB)

    return traced


# The first of each model; the others are long.
FIRST = [("t5", "dp"), ("t5", "cp"), ("bart", "pp")]
CASES = [(model, plan) for model in CONFIGS for plan in PLANS]


@pytest.mark.parametrize(
    ("model", "plan"),
    [pytest.param(*c, marks=() if c in FIRST else pytest.mark.long) for c in CASES],
)
def test_it_equals_the_own_training_of_the_library(
    traces: Callable[[str], Traced], model: str, plan: str, pool: Pool, tmp_path: Path
) -> None:
    """Loss, gradients and updated parameters, of rows whose sources and targets end anywhere."""
    if model == "bart":
        skip_where_drawn(modeling_bart.BartEncoder)
    made = _plan(traces(model), PLANS[plan])
    write_program(made, tmp_path / "p")
    data = [_pairs(step) for step in range(STEPS)]
    steps = [(_tokens(labels).numpy(), labels.numpy(), RATE) for _, labels in data]
    job = Job(tmp_path / "p", made.mesh.num_devices, steps, 0, asdict(_ONE_STEP), False, 60.0)
    ranks = pool.run(replace(job, others=tuple({"source": source.numpy()} for source, _ in data)))
    losses, grads, params = _by_the_library(made, data)
    torch.testing.assert_close(ranks[0].losses, losses, rtol=1e-11, atol=0)
    same(assemble(made, ranks, lambda rank: rank.grads, trained=True), grads)
    same(assemble(made, ranks, lambda rank: rank.params), params)


def _plan(traced: Traced, pins: dict) -> Plan:
    words = {"micro_batch": 2} | pins
    ranks = 2 if set(words) & {"dp", "tp", "pp", "cp"} else 1
    cluster = parse_cluster(f"cpu:{ranks}")
    return make_plan(traced, cluster, seq=SEQ, global_batch=ROWS, pins=Pins(**words))


def _pairs(step: int) -> tuple[Tensor, Tensor]:
    """A source and labels, int64 [ROWS, SEQ]; the last row of each is full."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(4, VOCAB, (2, ROWS, SEQ), generator=generator)
    sizes = torch.randint(1, SEQ, (2, ROWS, 1), generator=generator)
    sizes[:, -1] = SEQ
    past = torch.arange(SEQ) >= sizes
    return ids[0].masked_fill(past[0], NOTHING), ids[1].masked_fill(past[1], IGNORED)


def _tokens(labels: Tensor) -> Tensor:
    """The label before each, NOTHING where there is none."""
    before = torch.cat([torch.full((ROWS, 1), NOTHING), labels[:, :-1]], 1)
    return before.clamp(min=NOTHING)


def _by_the_library(
    plan: Plan, data: list[tuple[Tensor, Tensor]]
) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    config = CONFIGS[plan.model]
    with default_dtype(torch.float64):
        model = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager")
    params = with_values_of(plan, model.double().train())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses, grads = [], []
    for source, labels in data:
        optimizer.zero_grad()
        ids = source.masked_fill(source == NOTHING, config.pad_token_id)
        with Widened():
            loss = model(input_ids=ids, attention_mask=(source >= 0).long(), labels=labels).loss
        loss.backward()
        losses.append(float(loss.detach()))
        trained = {name: param for name, param in params.items() if param.requires_grad}
        grads.append({name: param.grad.clone() for name, param in trained.items()})
        optimizer.step()
    return losses, grads[0], {name: param.detach() for name, param in params.items()}


def with_values_of(plan: Plan, model: nn.Module) -> dict[str, Tensor]:
    """Let a model begin with the values of a run of seed 0; return its parameters, and the buffers
    that are stored with them, by their names in the plan."""
    found: dict[str, Tensor] = {f"hf.{n}": param for n, param in model.named_parameters()}
    found |= {f"hf.{name}": buffer for name, buffer in model.named_buffers()}
    for param in plan.params:
        shape = tuple(evaluate(size, {}) for size in param.shape)
        where = {"dtype": torch.float64, "device": torch.device("cpu")}
        value = initial_value(param.name, shape, param.init, seed=0, stored={}, **where)
        found[param.name].data.copy_(value)
    return {name: found[name] for name in (param.name for param in plan.params)}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10 * max(scale, 1e-3))


def test_a_dry_run_takes_a_source(traces: Callable[[str], Traced], tmp_path: Path) -> None:
    write_program(_plan(traces("t5"), {"cp": 2}), tmp_path / "p")
    mw.dry_run(tmp_path / "p")
