"""Modules at the edges of capture: computed as PyTorch computes them, or refused in one line."""

import random
import re

import numpy as np
import proofs.zoo_of_layers  # adds its modules
import proofs.zoo_of_rows
import proofs.zoo_of_states
import proofs.zoo_of_values
import proofs.zoo_of_ways  # noqa: F401
import pytest
import torch
from proofs.zoo import VOCAB, ZOO
from torch import Tensor, nn

from meshwright.ir.capture import export
from meshwright.ir.capture.export import trace
from meshwright.ir.errors import CaptureError
from meshwright.proof.prove import Subject, prove

# What is refused, and what the message says.
EITHER = "calls_a_scripted_function"  # refused or proven
REFUSED = {
    "custom_function": "torch.autograd.Function Triple has a backward that capture cannot see",
    "parameter_hook": "parameter proj.weight has a hook on its gradient",
    "value_hook": "a hook on the gradient of a value of 3 dimensions",
    "module_hook": "module proj has a backward hook",
    "in_place_residual": "the module itself fails in PyTorch",
    "counts_calls": "each call of its forward changes attribute calls",
    "keeps_the_first_weights": "keeps what it made of earlier weights",
    "mapped": "is no op that a graph can hold",
    "capacity_over_the_batch": r"cumsum at .*zoo\w*.py:\d+ gives a row what other rows hold",
    "buffer_of_a_weight": "buffer first holds what was computed from a parameter",
    "unfreezes_in_forward": "weight has a gradient in PyTorch, and none in the captured program",
    "overwrites_what_a_weight_gives": "weight has a gradient of zeros, by which optimizers decay",
    "copies_over_a_weight": "weight has a gradient of zeros, by which optimizers decay",
    "freezes_in_forward": "weight has no gradient in PyTorch, and one in the captured program",
    "batch_norm": "writes into buffer norm.num_batches_tracked",
    "counting_buffer": "writes into buffer count",
    "batch_mean": r"mean.dim at .*zoo\w*.py:\d+ makes one value of all rows",
    "batch_as_number": "B is how many rows a batch has",
    "rows_compared": r"amax at .*zoo\w*.py:\d+ makes one value of all rows",
    "random_noise": r"rand_like at .*zoo\w*.py:\d+ draws at random",
    "rare_draw": r"rand at .*zoo\w*.py:\d+ draws at random",
    "writes_counted": r"its forward reads _version at .*zoo\w*.py:\d+",
    "one_row_apart": r"zoo_of_states.py:\d+ asks for the number of rows, and one row is unlike sev",
    "mean_of_one_row": r"zoo_of_states.py:\d+ asks for the number of rows",
    "rare_in_all_rows": r"all at .*zoo\w*.py:\d+ makes one value of all rows",
    "one_long_row_apart": r"zoo_of_rows.py:\d+ asks for the number of rows",
    "squeezed_rows": r"squeeze at .*zoo\w*.py:\d+ without a dim drops that of the rows",
    "rows_flattened_and_rolled": r"roll at .* gives a row what its place in the batch says",
    "rows_reshaped_into_others": r"view at .* puts elements of a row into others",
    "equal_rows_counted": r"eq.Tensor at .* makes a value of shape \[B, B, ",
    "rows_shifted": r"pad at .* makes a value of shape \[B \+ 1, S, 12\]",
    "first_row_indexed": r"index.Tensor at .* gives a row what other rows hold",
    "rows_contracted": r"einsum at .* gives a row what other rows hold",
    "normed_over_rows": r"batch_norm at .* gives a row what other rows hold",
    "numbers_of_rows": r"mul.Tensor at .* calculates with the numbers of rows",
    "rows_summed_of_nothing": r"sum at .*",
    "warms_up_in_a_config": "each call of its forward changes attribute config",
    "counts_in_a_global": r"each call of its forward changes attribute \S*_CALLS",
    "keeps_weights_by_width": "keeps what it made of earlier weights",
    "counts_in_slots": "each call of its forward changes attribute counter",
    "counts_in_a_closure": "each call of its forward changes attribute schedule",
    "caches_by_length": r"zoo_of_states.py:\d+ takes a size as a key",
    "looks_a_length_up": r"zoo_of_rows.py:\d+ takes a size as a key",
    "length_as_text": r"zoo_of_rows.py:\d+ takes a size as text",
    "keeps_weights_by_shape": r"zoo_of_rows.py:\d+ takes a size as text",
    "keeps_weights_in_a_cache": r"zoo_of_rows.py:\d+ takes a size as text",
    "flags_moved": r"roll at .* gives a row what its place in the batch says",
    "flags_multiplied": r"cumprod at .* gives a row what other rows hold",
    "rows_added_to_the_first": r"index_add at .* gives a row what other rows hold",
    "rolled_by_the_rows_tried": r"roll at .* gives a row what its place in the batch says",
    "triangle_of_rows": r"tril at .* gives a row what its place in the batch says",
    "writes_data": r"mul_ at .*zoo\w*.py:\d+ writes through detach",
    "parameter_in_a_list": r"weights holds a trainable tensor of shape \[12, 12\] that is no param",
    "cached_for_ever": "keeps a value between calls, as functools.lru_cache does",
    "two_on_one_memory": "again and proj.weight are two parameters on one memory",
    "lazy_layer": "param weight of LazyLinear has no shape before the first call",
    "sorted_rows": r"sort at .*zoo\w*.py:\d+ gives a row what other rows hold",
    "even_lengths": r"needs .*Mod\(S, 2\).*, which B=1, S=4 breaks",
    # torch fails as it writes a suggestion for this one, see ir/capture/suggestions.py.
    "padded_to_a_multiple": r"zoo\w*.py:\d+ needs Ne\(.*PythonMod\(-S, 4\).*, which B=1, S=8",
    "branch_at_one_length": r"needs Ne\(S, 512\), which B=1, S=512 breaks",
    "branch_at_one_batch": r"needs Ne\(B, 24\), which B=24, S=4 breaks",
    "branch_at_many_tokens": r"needs .*5000.*, which B=\d+, S=\d+ breaks",
    "branch_at_one_size": r"zoo_of_states.py:\d+ needs Ne\(.*, which B=\d+, S=\d+ breaks",
    "branch_at_the_longest_row": "1 x 1 rows of 48 tokens, .* computes the longest row in another",
    "looped_over_tokens": "S is bound to a number .13., as by a loop over tokens",
    "random_buffer": "Its buffer noise is drawn at random when the module is built",
    "reads_the_last": "called twice on the same tokens gives losses|keeps",
    "max_norm": "writes into parameter embed.weight",
    "autocast": r"torch.autocast around \S*zoo.py:\d+: .* cast where it is needed",
    "cut_in_two": r": chunk into 2 at .*zoo\w*.py:\d+: S is bound to a number \(13\)",
    "draws_by_itself": r"(rand.generator at|draws_by_itself:) .*zoo\w*.py:\d+ draws from a "
    r"torch.Generator of its own",
    "running_mean": r"mul_ at .*zoo\w*.py:\d+ writes into buffer mean",
    "orthogonal_weight": r"aten.allclose.default under .*zoo\w*.py:\d+, as the module is built",
    "norms_of_drawn_weights": r"norms there: call nn.init.ones_ on turn.*original0",
    "fast_convolution": r"fft_rfft at .*zoo\w*.py:\d+ makes a tensor of torch.complex64",
    "spectral": "spectral_norm, which keeps vectors",
    "asks_for_a_compiler": r"zoo_of_ways.py:\d+ asks torch.compiler.is_compiling\(\)",
    "has_a_scripted_part": "act is a module of torch.jit; build it without",
    "maps_a_function": r"^torch.vmap at .*zoo_of_ways.py:\d+ is no op",
    "maps_over_weights": r"^torch.vmap at .*zoo_of_ways.py:\d+ is no op",
    "maps_by_one_made_before": r"^torch.vmap at .*zoo_of_ways.py:\d+ is no op",
    "takes_a_gradient_of_a_function": r"^torch.func.grad at .*zoo_of_ways.py:\d+ is no op",
    "takes_a_gradient_of_each_row": r"^torch.vmap at .*zoo_of_ways.py:\d+ is no op",
    "takes_a_value_and_a_gradient": r"^torch.func.grad_and_value at .*zoo_of_ways.py:\d+ is no",
    "derives_along_ones": r"^torch.func.jvp or jacfwd at .*zoo_of_ways.py:\d+ is no op",
    "derives_backward": r"^torch.func.vjp or jacrev at .*zoo_of_ways.py:\d+ is no op",
    "adds_by_an_associative_scan": r"^associative_scan at .*zoo_of_ways.py:\d+ is cut up by the",
    "attends_by_a_function": r"^flex_attention at .*zoo_of_ways.py:\d+ takes functions of scores",
    "attends_by_blocks": r"^create_block_mask at .*zoo_of_ways.py:\d+ takes a function of scores",
    "attends_by_a_bias_of_torch": r"^CausalBias at .*zoo_of_ways.py:\d+ is no plain tensor",
    "draws_as_many_by_itself": r"randn at .*zoo_of_ways.py:\d+ draws from a torch.Generator of its",
    "asks_for_a_trace": r"asks_for_a_trace of proofs/zoo_of_ways.py:\d+, line \d+, runs in a train",
    "takes_a_size_for_a_number": r"takes_a_size\w+ of proofs/zoo_of_ways.py:\d+, line \d+, runs in",
    "tries_to_read_values": r"tries_to_read_values of proofs/zoo_of_ways.py:\d+, line \d+, runs in",
    "writes_values_down": r"zoo_of_ways.py:\d+ writes the values of a tensor down",
    "region_by_values": r"cond at .*zoo\w*.py:\d+: a region of its own",
    "region_by_tokens": r"scan at .*zoo\w*.py:\d+: a region of its own",
    "branch_on_values": r"zoo\w*.py:\d+ decides by values of a tensor",
    "asserted_values": r"zoo\w*.py:\d+ decides by values of a tensor",
    "boolean_index": r"index.Tensor at .*zoo\w*.py:\d+ makes sizes or numbers of the values",
    "places_by_values": r"where at .*zoo\w*.py:\d+ makes sizes or numbers of the values",
    "length_by_values": r"item at .*zoo\w*.py:\d+ makes sizes or numbers of the values",
}


def _prove(name: str, dtype: str) -> None:
    subject = Subject(name, ZOO[name], VOCAB, None)
    prove(subject, trace(ZOO[name], name, dtype, VOCAB))


@pytest.mark.parametrize("name", [name for name in ZOO if name not in {*REFUSED, EITHER}])
def test_is_proven(name: str) -> None:
    _prove(name, "f32")


@pytest.mark.parametrize("dtype", ["bf16", "f64"])
@pytest.mark.parametrize(
    "name",
    [
        "narrow_parts",
        "made_of_numbers",
        "logarithms_of_sizes",
        "values_of_another_size",
        "numbers_in_places",
    ],
)
def test_narrow_casts_and_numbers_are_proven_in_every_dtype(name: str, dtype: str) -> None:
    _prove(name, dtype)


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(CaptureError) as caught:
        _prove(name, "f32")
    message = str(caught.value)
    assert re.search(REFUSED[name], message), message
    assert "\n" not in message


def test_a_scripted_function_is_refused_by_name_or_proven() -> None:
    """Torch's own testing tools, once imported, let an export see through it."""
    try:
        _prove(EITHER, "f32")
    except CaptureError as error:
        named = r"zoo_of_ways.py:\d+ calls scripted, compiled by torch.jit.script; take the dec"
        assert re.search(named, str(error))


def test_what_torch_lacks_in_the_dtype_of_the_plan_is_refused_in_its_words() -> None:
    with pytest.raises(CaptureError, match="fails in PyTorch on .* not implemented for 'BFloat16'"):
        _prove("distances", "bf16")


WIDE = 5000


class _CountsTokens(nn.Module):
    """Divides by how often the whole batch holds some tokens of a large vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WIDE, 8)
        self.head = nn.Linear(8, WIDE)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).tanh() / (1 + self.counted(tokens).sum()))

    def counted(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError


class _Ends(_CountsTokens):
    def counted(self, tokens: Tensor) -> Tensor:
        return tokens == 2


class _OneFarAway(_CountsTokens):
    def counted(self, tokens: Tensor) -> Tensor:
        return tokens == 3777


class _Listed(_CountsTokens):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ids", torch.tensor([4001, 4444]))

    def counted(self, tokens: Tensor) -> Tensor:
        return (tokens.unsqueeze(-1) == self.ids).any(-1)


class _Repeats(_CountsTokens):
    def counted(self, tokens: Tensor) -> Tensor:
        return tokens[:, 1:] == tokens[:, :-1]


@pytest.mark.parametrize("made", [_Ends, _OneFarAway, _Listed, _Repeats])
def test_a_proof_draws_the_rare_tokens_that_a_batch_is_looked_at_for(
    made: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens drawn evenly would hold none of them."""
    monkeypatch.setattr(export, "check_rows", lambda graph: None)
    with pytest.raises(CaptureError, match="rows see each other, or their number is used"):
        prove(Subject("counts", made, WIDE, None), trace(made, "counts", "f64", WIDE))


@pytest.mark.parametrize("made", [_Ends, _OneFarAway, _Listed, _Repeats])
def test_a_count_over_the_batch_is_refused_by_its_shape(made: type[nn.Module]) -> None:
    with pytest.raises(CaptureError, match="sum at .* makes one value of all rows"):
        trace(made, "counts", "f64", WIDE)


class _Skipping(_CountsTokens):
    """Skips what it does once in ten calls: a capture and all its proofs may see the other nine."""

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        return self.head(h.tanh() if self.drawn() < 0.9 else h)

    def drawn(self) -> float:
        return random.uniform(0.0, 0.5)


class _SkippingByNumpy(_Skipping):
    def drawn(self) -> float:
        return float(np.random.uniform(0.0, 0.5))


@pytest.mark.parametrize("made", [_Skipping, _SkippingByNumpy])
def test_a_draw_outside_of_torch_is_refused_though_nothing_shows(made: type[nn.Module]) -> None:
    with pytest.raises(CaptureError, match=r"its forward draws from (numpy\.)?random"):
        prove(Subject("skips", made, WIDE, None), trace(made, "skips", "f64", WIDE))
