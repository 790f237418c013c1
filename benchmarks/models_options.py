"""Random options of a class's config: what its users turn on beside its sizes.

A field takes part where the class has it and its default is of the kind that a pattern below names.
Half of those that do are changed. What the library then refuses is no config of the class.
"""

import random
import re
from collections.abc import Callable
from typing import Any

Draw = Callable[[random.Random, Any], Any]


def _other(rng: random.Random, value: bool) -> bool:
    return not value


def _of(*values: Any) -> Draw:
    return lambda rng, value: rng.choice(values)


# The first pattern that fits the whole name of a field counts; type of the default, and what may
# take its place.
_OPTIONS: tuple[tuple[str, type | tuple[type, ...], Draw], ...] = (
    (r"\w*layerdrop\w*", object, lambda rng, value: value),  # layers left out at random
    (r"\w*(drop|dropout)\w*", (float, int), _of(0.1, 0.25)),
    (r"\w*bias\w*", bool, _other),
    (r"tie_word_embeddings|output_router_logits", bool, _other),
    (r"(use_)?(parallel_residual|parallel_attn|qk_norm|qk_layernorm|rezero)|alibi", bool, _other),
    (r"scale_\w+|reorder_and_upcast_attn|do_layer_norm_before|norm_topk_prob", bool, _other),
    (r"multi_query|new_decoder_architecture|use_sliding_window|layer_norm_before", bool, _other),
    (r"head_dim", int, _of(6, 10, 20)),
    (r"num_key_value_heads", int, _of(1, 2, 4)),
    (r"sliding_window|window_size|attention_window", int, _of(3, 5, 9, 16)),
    (r"\w*(logit_?s?)_?(scale|scaling)|\w*_multiplier", float, _of(0.5, 0.75, 1.5)),
    (r"\w*softcap\w*", (float, type(None)), _of(5.0, 30.0, None)),
    (r"partial_rotary_factor|rotary_pct", float, _of(0.5, 1.0)),
    (r"(hidden_act|hidden_activation|activation_function|activation)", str,
     _of("relu", "gelu", "silu", "gelu_pytorch_tanh")),
    (r"(rms_norm|layer_norm|norm|layernorm)_(eps|epsilon)", float, _of(1e-6, 1e-3)),
    (r"initializer_range", float, _of(0.05, 0.1)),
)  # fmt: skip


def random_options(fields: dict[str, Any], seed: int, name: str) -> dict[str, Any]:
    """Return the fields of a config that change, by name. fields: those of the tiny config."""
    rng = random.Random(f"options/{seed}/{name}")
    changed = {}
    for key, value in sorted(fields.items()):
        draw = _draw_of(key, value)
        if draw is not None and rng.random() < 0.5:
            drawn = draw(rng, value)
            changed |= {} if drawn == value else {key: drawn}
    return changed


def _draw_of(key: str, value: Any) -> Draw | None:
    for pattern, kind, draw in _OPTIONS:
        if re.fullmatch(pattern, key):
            plain = kind is bool or not isinstance(value, bool)
            return draw if isinstance(value, kind) and plain else None
    return None
