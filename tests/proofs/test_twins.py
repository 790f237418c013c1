"""A user's own module is proven on fewer of its children where these stand for all."""

from contextlib import suppress
from itertools import islice

import pytest
from sampling import mostly_long
from stacks import source_of, traced

from meshwright.api import proving
from meshwright.ir.capture.export import trace
from meshwright.ir.capture.exported import quiet
from meshwright.ir.errors import CaptureError
from meshwright.models.huggingface import stock_source
from meshwright.models.twins import twins
from meshwright.proof.prove import parameter_bytes
from meshwright.proof.twin import shortens


@pytest.mark.parametrize(
    ("kind", "stands"), [("alike", 3), ("alternating", 4), ("scaled", None), ("shared", None)]
)
def test_the_fewest_children_that_stand_for_all(kind: str, stands: int | None) -> None:
    whole = traced(source_of(kind))
    found = [shortens(traced(twin), whole) for twin in twins(source_of(kind))]
    assert found == [stands is not None and count >= stands for count in (2, 3, 4)]


def test_a_large_module_is_proven_on_its_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "WITH_TWIN_BYTES", 0)
    source = source_of("alike")
    _, said = proving.proven(
        source, traced(source), None, "", trust=False, full=False, say=lambda _: None
    )
    assert said.startswith("capture: proven on a twin of 1,952 bytes of parameters")


STOCK = {
    "olmo2": {"pad_token_id": 1, "num_hidden_layers": 32},
    "qwen3_moe": {"num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 12},
    "deepseek_v3": {"first_k_dense_replace": 3, "num_hidden_layers": 61},
    "gemma3_text": {"num_hidden_layers": 26},
}


@pytest.mark.parametrize("name", mostly_long(STOCK, "olmo2", "qwen3_moe"))
def test_the_first_twins_of_a_stock_class_are_small_and_one_of_them_traces(name: str) -> None:
    """Heads, experts and rows of padding of a large config reduced together."""
    transformers = pytest.importorskip("transformers")
    config = transformers.models.auto.configuration_auto.CONFIG_MAPPING[name](**STOCK[name])
    for small in islice(twins(stock_source(name, config)), 2):
        with suppress(CaptureError), quiet():
            found = trace(small.build, name, "f32", small.vocab_size)
            break
    else:
        pytest.fail("neither of the first two traces")
    assert parameter_bytes(found) < 2**25
    if name == "olmo2":
        embed = next(op for op in found.graph.ops if op.target == "embedding")
        assert dict(embed.attrs)["padding_idx"] == 0
