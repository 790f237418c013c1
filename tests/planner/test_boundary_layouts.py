"""How values may cross a cut: read off the factors of what reads them."""

import pytest
from families import traced
from stream_models import VOCAB, ValueResidual

from meshwright.ir.capture.export import trace
from meshwright.ir.graph import Value
from meshwright.ir.mesh import compute_mesh
from meshwright.ir.placement import format_placement
from meshwright.ir.sizes import B, S
from meshwright.ir.traced import Traced
from meshwright.planner.cost.op_cost import Costs
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.sharding.boundary_layouts import format_layout, layouts_of, uncut
from meshwright.planner.sharding.chain import shard_model


def offered(model: Traced, segment: str, seq: int, tp: int = 2, cp: int = 1) -> list[str]:
    costs = Costs(parse_cluster("h200:8"), compute_mesh(tp, cp), {"B": 2, "S": seq})
    return [format_layout(layout) for layout in layouts_of(model.joints[segment], costs)]


@pytest.fixture(scope="module")
def values() -> Traced:
    return trace(ValueResidual, "values", "bf16", VOCAB)


@pytest.mark.parametrize("segment", ["attention", "ffn", "head"])
def test_the_stream_of_a_llama_is_whole_or_cut_in_the_sequence(segment: str) -> None:
    assert offered(traced("tiny-llama"), segment, 64) == ["[{}, {}, {}]", "[{}, {tp}, {}]"]


def test_on_context_ranks_tensor_ranks_cut_inside_their_shards() -> None:
    found = offered(traced("tiny-llama"), "ffn", 64, tp=2, cp=2)
    assert found == ["[{}, {cp}, {}]", "[{}, {cp 2:tp}, {}]"]


def test_features_are_offered_where_the_sequence_does_not_divide() -> None:
    assert offered(traced("tiny-llama"), "ffn", 33) == ["[{}, {}, {}]", "[{}, {}, {tp}]"]


def test_nothing_is_cut_where_nothing_divides() -> None:
    assert offered(traced("tiny-llama"), "ffn", 33, tp=7) == ["[{}, {}, {}]"]


@pytest.mark.parametrize(
    ("more", "mirrored", "found"),
    [
        (0, False, "[{}, {cp}, {}]"),
        (2, False, "[{}, {cp}, {}]"),
        (3, False, "[{}, {}, {}]"),
        (2, True, "[{}, {}, {}]"),
        (4, True, "[{}, {cp~}, {}]"),
    ],
)
def test_a_row_with_tokens_of_memory_is_whole_where_it_does_not_divide(
    more: int, mirrored: bool, found: str
) -> None:
    value = Value("x", "bf16", (B, S + more, 8))
    placed = uncut(value, compute_mesh(1, 2), {"B": 4, "S": 8}, mirrored)
    assert format_placement(placed) == found


def test_nothing_crosses_before_the_first_segment() -> None:
    assert offered(traced("tiny-llama"), "embed", 64) == ["nothing"]


def test_values_of_attention_are_cut_by_heads_and_never_in_the_sequence(values: Traced) -> None:
    found = {text.split(", [")[1] for text in offered(values, "mix_2", 64)}
    assert found == {"{}, {}, {}]", "{}, {}, {tp}]"}


def test_the_values_of_the_first_layer_stay_cut_by_heads(values: Traced) -> None:
    """Gathered at a cut, they would be exchanged in every layer."""
    model = shard_model(
        values.segmented,
        values.joints,
        mesh=compute_mesh(2),
        cluster=parse_cluster("h200:8"),
        micro_batch=4,
        seq=4096,
        num_microbatches=4,
        price=None,
        shard_matmul_weights=True,
    )
    crossing = [model.lowered[n].boundary_in for n in model.instances]
    carried = {format_layout(layout[1:]) for layout in crossing if len(layout) > 1}
    assert carried == {"[{}, {}, {tp}]"}
