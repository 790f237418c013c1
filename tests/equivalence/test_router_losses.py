"""The loss of routers over the whole batch: as the library trains it, under every plan."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from equivalence.boxes import assemble
from equivalence.oracle import Widened
from equivalence.pool import Pool
from equivalence.stock_runs import PLANS, planned, ran, tokens_of
from equivalence.test_pairs import same, with_values_of
from torch import Tensor

from meshwright.ir.capture.export import trace
from meshwright.ir.capture.initialisers import default_dtype
from meshwright.ir.errors import PlanError
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced
from meshwright.models import load_model
from meshwright.runtime.optimizers.options import OptimizerOptions

VOCAB, STEPS, RATE = 64, 2, 0.1
_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16,
    "output_router_logits": True, "router_aux_loss_coef": 0.5,
}  # fmt: skip
CONFIGS = {
    "mixtral": transformers.MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": transformers.Qwen3MoeConfig(  # its first layer is dense
        **_SIZES, head_dim=8, moe_intermediate_size=16, num_experts=6, num_experts_per_tok=3,
        mlp_only_layers=[0],
    ),
    "gpt_oss": transformers.GptOssConfig(
        **_SIZES, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4,
    ),
    "granitemoe": transformers.GraniteMoeConfig(
        **_SIZES, num_local_experts=4, num_experts_per_tok=2, attention_multiplier=0.3,
    ),
}  # fmt: skip
# The first of each plan; the others are long.
FIRST = [("mixtral", "one"), ("mixtral", "pp dp"), ("qwen3_moe", "tp"), ("gpt_oss", "cp")]
CASES = [(model, plan) for model in CONFIGS for plan in PLANS]
_ONE_STEP = OptimizerOptions(name="sgd", momentum=0.0, weight_decay=0.0, clip=0.0)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Traced]:
    @cache
    def traced(name: str) -> Traced:
        folder = tmp_path_factory.mktemp(name)
        CONFIGS[name].save_pretrained(folder)
        return trace(load_model(f"hf:{folder}").build, name, "f64", VOCAB)

    return traced


@pytest.mark.parametrize(
    ("model", "plan"),
    [pytest.param(*c, marks=() if c in FIRST else pytest.mark.long) for c in CASES],
)
def test_it_equals_the_own_training_of_the_library(
    traces: Callable[[str], Traced], model: str, plan: str, pool: Pool, tmp_path: Path
) -> None:
    """Loss, gradients and updated parameters, by the class's own `labels=`."""
    made = planned(traces(model), PLANS[plan])
    data = [tokens_of(step, VOCAB) for step in range(STEPS)]
    ranks = ran(made, data, _ONE_STEP, RATE, pool, tmp_path / "p")
    losses, grads, params = _by_the_library(made, data)
    torch.testing.assert_close(ranks[0].losses, losses, rtol=1e-11, atol=0)
    same(assemble(made, ranks, lambda rank: rank.grads, trained=True), grads)
    same(assemble(made, ranks, lambda rank: rank.params), params)


def test_backwards_before_the_last_forward_are_refused(traces: Callable[[str], Traced]) -> None:
    for pins, asked in (({"schedule": "1f1b"}, "schedule=1f1b"), ({"chunks": 2}, "chunks=2")):
        with pytest.raises(PlanError, match=f"{asked}: the loss of the model's routers .*=gpipe"):
            planned(traces("mixtral"), {"pp": 2, **pins})


def _by_the_library(
    plan: Plan, data: list[Tensor]
) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    config = CONFIGS[plan.model]
    with default_dtype(torch.float64):
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", experts_implementation="eager"
        )
    params = with_values_of(plan, model.double().train())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses, grads = [], []
    for tokens in data:
        optimizer.zero_grad()
        with Widened():
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        losses.append(float(loss.detach()))
        trained = {name: param for name, param in params.items() if param.requires_grad}
        grads.append({name: param.grad.clone() for name, param in trained.items()})
        optimizer.step()
    return losses, grads[0], {name: param.detach() for name, param in params.items()}
