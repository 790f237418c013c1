"""Capture: its cost, what it records, what it refuses."""

import re
import subprocess
import sys

import pytest
import torch
from families import traced
from sampling import mostly_long
from torch import Tensor, nn

from meshwright.ir.capture.export import capture, trace
from meshwright.ir.errors import CaptureError
from meshwright.ir.lengths import Lengths
from meshwright.ir.ops.registry import definition

# Processor seconds of a layer, in a model four times as deep, over those in the shallow one: a core
# whose twin is busy, or a slower machine, changes both. What is quadratic in layers reads 4.
LONGER, GIB = 1.8, 3.0
COST = """
import resource, sys, time
from dataclasses import replace
from functools import partial
import torch
torch.set_num_threads(1)
from meshwright.ir.capture.export import capture
from meshwright.models.load import build_decoder
from meshwright.models.presets import PRESETS
def seconds_of(layers):
    config = replace(PRESETS["llama-70b"], layers=layers)
    start = time.process_time()
    graph = capture(partial(build_decoder, config), "deep", "bf16").graph
    assert len(graph.inputs_of("param")) == layers * 9 + 3
    return time.process_time() - start
seconds_of(1)  # what only the first capture pays, such as imports
layers = int(sys.argv[1])
shallow, deep = seconds_of(layers // 4), seconds_of(layers)
print(deep / shallow / 4, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.parametrize("layers", mostly_long((12, 80), 12))
def test_a_deep_model_is_captured_in_time_linear_in_layers_without_its_weights(layers: int) -> None:
    command = [sys.executable, "-c", COST, str(layers)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    longer, gib = map(float, done.stdout.split())
    assert longer < LONGER, f"{longer:.2f} times the seconds a layer, {gib:.2f} GiB at the peak"
    assert gib < GIB, f"{gib:.2f} GiB at the peak, {longer:.2f} times the seconds a layer"


def test_a_llama_falls_into_embed_blocks_of_two_and_head() -> None:
    segmented = traced("tiny-llama").segmented
    first, *blocks, last = [i.segment for i in segmented.instances]
    mixer, ffn = blocks[:2]
    assert blocks == [mixer, ffn] * 2
    assert len({first, mixer, ffn, last}) == 4
    targets = {name: {op.target for op in segmented.segment(name).graph.ops} for name in blocks}
    assert "mw.attention" in targets[mixer]
    assert "mw.attention" not in targets[ffn]


@pytest.mark.parametrize(("name", "tied"), [("tiny-qwen2", True), ("tiny-llama", False)])
def test_a_tied_head_is_one_parameter_with_two_homes(name: str, tied: bool) -> None:
    instances = traced(name).segmented.instances
    shared = set(instances[0].params) & set(instances[-1].params)
    assert shared == ({"embed.weight"} if tied else set())


class Recipes(nn.Module):
    """A parameter of each kind of start."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 8)
        self.head = nn.Linear(8, 32, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.trunc_normal_(self.fc.weight, std=0.5, a=-1.0, b=1.0)
        nn.init.zeros_(self.fc.bias)
        nn.init.uniform_(self.head.weight, -0.25, 0.25)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embed(tokens)
        return self.head(h + self.fc(self.norm(h)))


def test_each_parameter_carries_its_initial_distribution() -> None:
    graph = capture(Recipes, "recipes", "f32").graph
    assert {i.ref: i.init for i in graph.inputs_of("param")} == {
        "embed.weight": "normal(0.0, 0.02)",
        "norm.weight": "constant(1.0)",
        "norm.bias": "constant(0.0)",
        "fc.weight": "trunc_normal(0.0, 0.5, -1.0, 1.0)",
        "fc.bias": "constant(0.0)",
        "head.weight": "uniform(-0.25, 0.25)",
    }


class Bound(Recipes):
    """Reads thirteen positions, whatever the sequence."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens) + self.embed.weight[:13])


def test_a_model_that_binds_the_sequence_is_refused_with_the_number() -> None:
    with pytest.raises(CaptureError, match=r"S is bound to a number \(13\)"):
        capture(Bound, "bound", "f32")


class Dropped(Recipes):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = nn.functional.dropout(self.embed(tokens), 0.25, training=True)
        return self.head(h)


def test_dropout_is_an_op_by_numbered_draws() -> None:
    graph = capture(Dropped, "dropped", "f32").graph
    (op,) = (op for op in graph.ops if definition(op).numbered)
    assert op.inputs[1:] == ("draws", "rows")
    assert dict(op.attrs) == {"p": 0.25, "number": 0}
    assert re.fullmatch(r"ir/test_capture\.py:\d+", op.source)


class Padded(nn.Module):
    def __init__(self, **words: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8, padding_idx=3, **words)
        self.head = nn.Linear(8, 16, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


def test_a_padding_row_starts_at_zero_and_learns_nothing() -> None:
    traced = trace(Padded, "padded", "f32", 16)
    embed = next(i for i in traced.graph.inputs if i.value.name == "embed.weight")
    assert embed.init == "normal(0.0, 1.0) row(3, 0.0)"
    ops = [op for g in traced.joints.values() for op in g.ops]
    (grad,) = (op for op in ops if op.target == "mw.embedding_weight_grad")
    assert grad.attr("padding_idx") == 3


def test_an_embedding_that_scales_its_gradient_is_refused() -> None:
    with pytest.raises(CaptureError, match="scale_grad_by_freq=True"):
        trace(lambda: Padded(scale_grad_by_freq=True), "padded", "f32", 16)


class Bytes(nn.Module):
    """A buffer of bytes with a sign."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)
        self.register_buffer("scales", torch.ones(8, dtype=torch.int8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens) * self.scales)


def test_a_dtype_that_no_plan_knows_is_named_with_its_buffer() -> None:
    with pytest.raises(CaptureError, match="^buffer scales is int8, and a plan knows float64, "):
        trace(Bytes, "bytes", "f32", 32)


def _trained(freeze: tuple[str, ...] = (), head: bool = True) -> dict[str, bool]:
    def build() -> nn.Module:
        module = Padded()
        module.head.weight.requires_grad_(head)
        return module

    traced = trace(build, "frozen", "f32", 16, freeze)
    return {i.ref: i.trainable for i in traced.graph.inputs_of("param")}


def test_parameters_are_frozen_by_the_module_and_by_name() -> None:
    assert _trained(head=False) == {"embed.weight": True, "head.weight": False}
    assert _trained(("em*",)) == {"embed.weight": False, "head.weight": True}


def test_a_pattern_without_a_parameter_is_refused_with_the_nearest() -> None:
    with pytest.raises(CaptureError, match=r"freeze=embd.*: matches none of the 2.*embed.weight"):
        _trained(("embd.*",))


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(CaptureError, match="all of its 2 parameters are frozen"):
        _trained(("em*",), head=False)


class Balanced(Padded):
    """Returns beside its logits what a router would add to the loss, a count, and its input."""

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        h = self.embed(tokens)
        return self.head(h), 0.1 * h.square().mean(), h.detach().sum(), h


def test_a_loss_beside_the_logits_is_said_to_be_left_out() -> None:
    warnings = trace(Balanced, "balanced", "f32", 16).warnings
    assert [w for w in warnings if "no part of the loss" in w] == [
        "the number that the forward returns at '1' is no part of the loss, which reads the logits "
        "alone; nothing trains by it (for that of routers, return their router_load)"
    ]


class Named(Padded):
    def forward(self, tokens: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        h = self.embed(tokens)
        return {"logits": self.head(h), "z_loss": h.square().mean().reshape(1)}


def test_a_loss_in_a_dictionary_is_named() -> None:
    (said,) = (w for w in trace(Named, "named", "f32", 16).warnings if "no part" in w)
    assert "returns at 'z_loss'" in said


class Keeping(Padded):
    """Sets a number as an attribute, of itself and of a part."""

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        self.z_loss, self.mean, self.last = h.square().mean(), h.detach().mean(), h
        self.embed.z_loss = h.square().sum()
        return self.head(h)


def test_a_loss_that_is_kept_as_an_attribute_is_said_to_be_left_out() -> None:
    (said,) = (w for w in trace(Keeping, "keeping", "f32", 16).warnings if "no part" in w)
    assert said.startswith("the number that the forward sets as attribute 'z_loss' and 1 more is")


class Chunked(nn.Module):
    """Seven features in parts of 3, 3 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 7)
        self.head = nn.Linear(7, 16, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        a, b, c = self.embed(tokens).chunk(3, dim=-1)
        return self.head(torch.cat((c, a, b), dim=-1))


def test_a_chunk_of_unequal_parts_keeps_the_rest() -> None:
    traced = trace(Chunked, "chunked", "f32", 16)
    (cat,) = (op for op in traced.graph.ops if op.target == "cat")
    joints = [op for g in traced.joints.values() for op in g.ops]
    widths = [op.output.shape[-1] for op in joints if op.target == "slice.Tensor"]
    assert widths[:3] == [3, 3, 1]
    assert cat.output.shape[-1] == 7


class LookedUp(nn.Module):
    """Positions looked up in tables: of 40 rows, of 18 from the second on, of 30 for two each, and
    of 15 distances."""

    vocab_size = 37

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(37, 8), nn.Linear(8, 37)
        self.positions, self.shifted = nn.Embedding(40, 8), nn.Embedding(18, 8)
        self.pairs = nn.Parameter(torch.randn(30, 8))
        self.distances = nn.Embedding(15, 1)

    def forward(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        with torch.no_grad():
            places = torch.arange(tokens.shape[1])
        x = self.embed(tokens) + self.positions(position_ids) + self.pairs[-1 - places // 2]
        x = x + self.shifted(torch.ones_like(tokens).cumsum(1) + 1)
        return self.head(x + self.distances((places[:, None] - places).abs()).squeeze(-1) @ x)


@pytest.mark.parametrize(
    ("large", "longest"),
    [((), 15), (("distances",), 16), (("distances", "shifted"), 40)],
)
def test_positions_looked_up_in_tables_bound_the_length(
    large: tuple[str, ...], longest: int
) -> None:
    def build() -> nn.Module:
        module = LookedUp()
        for name in large:
            setattr(module, name, nn.Embedding(500, getattr(module, name).embedding_dim))
        return module

    assert capture(build, "looked-up", "f32").lengths == Lengths(2, longest)


class Misshapen(Recipes):
    """Fails whatever its input: 7 does not divide what it has."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embed(tokens)
        return self.head(h.view(tokens.shape[0], tokens.shape[1], 5, 7).flatten(2))


def test_a_model_that_fails_by_itself_is_told_so() -> None:
    with pytest.raises(CaptureError, match=r"its forward fails on tokens \[7, 13\]: .*shape"):
        capture(Misshapen, "misshapen", "f32")


def test_an_einsum_is_contracted_in_the_order_that_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With opt_einsum, where it is installed, torch would order the factors by their numbers."""
    asked = []
    installed = {"is_available": lambda: True, "enabled": True, "strategy": "auto"}
    for name, value in installed.items():
        monkeypatch.setattr(torch.backends.opt_einsum.m, name, value)

    class Four(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(31, 8), nn.Linear(8, 31)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            asked.append(torch.backends.opt_einsum.enabled)
            x = self.embed(tokens)
            return self.head(torch.einsum("bid,bjd,bij,bje->bie", x, x, (x @ x.mT).tril(), x))

    assert torch.backends.opt_einsum.enabled
    trace(Four, "four", "f64", 31)
    assert asked and not any(asked)
    assert torch.backends.opt_einsum.enabled
