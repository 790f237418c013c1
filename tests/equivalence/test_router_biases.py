"""Biases of routers that go by the choices of a whole batch, under every plan."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from equivalence.boxes import assemble
from equivalence.oracle import Widened
from equivalence.pool import Pool
from equivalence.stock_runs import PLANS, ROWS, SEQ, planned, ran, tokens_of
from equivalence.test_pairs import same, with_values_of
from torch import Tensor, nn

import meshwright as mw
from meshwright.ir.capture.export import trace
from meshwright.ir.capture.initialisers import default_dtype
from meshwright.ir.capture.router_bias import with_updated_biases
from meshwright.ir.errors import CaptureError
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced
from meshwright.models import ModelSource, load_model
from meshwright.runtime.optimizers.options import OptimizerOptions

VOCAB, STEPS, RATE, MOVED = 64, 3, 0.1, 0.03
_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 16,
    "moe_intermediate_size": 16,
}  # fmt: skip
CONFIGS = {
    "deepseek_v3": transformers.DeepseekV3Config(
        **_SIZES, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
        n_shared_experts=1, first_k_dense_replace=1, q_lora_rank=None, kv_lora_rank=8,
        qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8,
    ),
    "ernie4_5_moe": transformers.Ernie4_5_MoeConfig(  # its biases are [1, E]
        **_SIZES, moe_num_experts=6, moe_k=2, moe_num_shared_experts=0, moe_layer_start_index=1,
    ),
}  # fmt: skip
# The first of each plan; the others are long.
FIRST = [("deepseek_v3", "one"), ("deepseek_v3", "pp dp"), ("ernie4_5_moe", "tp"),
         ("ernie4_5_moe", "cp"), ("deepseek_v3", "dp tp")]  # fmt: skip
CASES = [(model, plan) for model in CONFIGS for plan in PLANS]
_RULE = OptimizerOptions(
    name="sgd", momentum=0.0, weight_decay=0.0, clip=0.05, router_bias_rate=MOVED
)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Traced]:
    @cache
    def traced(name: str) -> Traced:
        folder = tmp_path_factory.mktemp(name)
        CONFIGS[name].save_pretrained(folder)
        return with_updated_biases(trace(load_model(f"hf:{folder}").build, name, "f64", VOCAB))

    return traced


@pytest.mark.parametrize(
    ("model", "plan"),
    [pytest.param(*c, marks=() if c in FIRST else pytest.mark.long) for c in CASES],
)
def test_biases_go_by_the_choices_of_the_batch(
    traces: Callable[[str], Traced], model: str, plan: str, pool: Pool, tmp_path: Path
) -> None:
    """Losses and all parameters, by the class and its experts' calls."""
    made = planned(traces(model), PLANS[plan])
    assert len(made.router_biases()) == 2
    data = [tokens_of(step, VOCAB) for step in range(STEPS)]
    ranks = ran(made, data, _RULE, RATE, pool, tmp_path / "p")
    losses, norms, params = _by_the_class(made, data)
    torch.testing.assert_close(ranks[0].losses, losses, rtol=1e-11, atol=0)
    torch.testing.assert_close(ranks[0].norms, norms, rtol=1e-10, atol=0)
    same(assemble(made, ranks, lambda rank: rank.params), params)


def _by_the_class(
    plan: Plan, data: list[Tensor]
) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Train a class by torch's SGD, and its biases by what its experts are called with."""
    with default_dtype(torch.float64):
        model = transformers.AutoModelForCausalLM.from_config(
            CONFIGS[plan.model], attn_implementation="eager", experts_implementation="eager"
        )
    params = with_values_of(plan, model.double().train())
    biases = [p for n, p in params.items() if n.endswith("e_score_correction_bias")]
    layers = [m for n, m in model.named_modules() if n.endswith("mlp.experts")]
    assert len(biases) == len(layers) == 2
    chosen: dict[int, Tensor] = {}
    for number, experts in enumerate(layers):
        experts.register_forward_pre_hook(
            lambda _, given, number=number: chosen.__setitem__(number, given[1])
        )
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
    losses, norms, starts = [], [], [bias.clone() for bias in biases]
    for tokens in data:
        optimizer.zero_grad()
        with Widened():
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), _RULE.clip)))
        optimizer.step()
        for number, bias in enumerate(biases):
            counts = torch.bincount(chosen[number].flatten(), minlength=bias.numel()).double()
            bias.data += MOVED * torch.sign(counts.mean() - counts).view_as(bias)
    assert all(not torch.equal(a, b) for a, b in zip(starts, biases, strict=True))
    return losses, norms, {name: param.detach() for name, param in params.items()}


class Router(nn.Module):
    """A router of six experts; kind: how its bias comes to the choice."""

    def __init__(self, kind: str, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.embed, self.head = nn.Embedding(VOCAB, 12), nn.Linear(12, VOCAB, bias=False)
        self.route = nn.Linear(12, 6, bias=False)
        self.experts = nn.ModuleList(nn.Linear(12, 12, bias=False) for _ in range(6))
        self.bias = nn.Parameter(torch.zeros(6))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        scores = self.route(h).sigmoid()
        biased = scores + self.bias
        chosen = biased.argsort(-1)[..., :2] if self.kind == "sorted" else biased.topk(2)[1]
        weights = (biased if self.kind == "weights" else scores).gather(-1, chosen)
        outs = torch.stack([expert(h) for expert in self.experts], -2)
        taken = outs.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, 12))
        return self.head((taken * weights.unsqueeze(-1)).sum(-2))


@pytest.mark.parametrize("kind", ["weights", "sorted"])
def test_other_biases_are_none_of_a_router(kind: str) -> None:
    traced = trace(lambda: Router(kind), kind, "f32", VOCAB)
    with pytest.raises(CaptureError, match=r"0 of its \d+ parameters .*--update-router-bias"):
        with_updated_biases(traced)


def test_a_bias_is_kept_in_float32_whatever_the_model_computes_in() -> None:
    traced = with_updated_biases(trace(lambda: Router("alone"), "own", "bf16", VOCAB))
    plan = planned(traced, {"precision": "pure", "rounding": "stochastic"})
    assert plan.router_biases() == {"bias"}
    assert plan.param("bias").dtype == "f32"
    assert {b.dtype for b in plan.buckets if any(e.param == "bias" for e in b.entries)} == {"f32"}


def test_a_model_stays_the_same_whether_its_biases_are_updated() -> None:
    """A checkpoint of either goes on under the other, and is exported."""
    source = ModelSource("own", VOCAB, None, lambda: Router("alone"))
    jobs = [mw.Job(SEQ, ROWS, dtype="f32", update_router_bias=moved) for moved in (False, True)]
    held, moved = (mw.plan(source, cluster="cpu:1", job=job).decisions for job in jobs)
    assert (held.router_biases(), moved.router_biases()) == (set(), {"bias"})
    assert held.identity == moved.identity
