"""Whether the weights of a Hugging Face folder are of the model that they are to go into.

Names and shapes do not tell: a model with another RoPE base, epsilon or number of heads takes the
same tensors and computes something else. The folder's config.json tells.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .errors import ModelError
from .huggingface import read_hf_config
from .source import ModelSource
from .stock import stock_config

# What decides the numbers, by the library's names; of the rest (tokens' ids, dropout, the length
# that a model is meant for) a forward without cache reads nothing, or the tensors' shapes tell.
_FIELDS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "hidden_act", "hidden_activation", "rms_norm_eps", "attention_bias",
    "mlp_bias", "tie_word_embeddings", "rope_parameters", "sliding_window", "layer_types",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
    "use_bidirectional_attention", "n_embd", "n_layer", "n_head", "activation_function",
    "layer_norm_epsilon", "scale_attn_weights", "scale_attn_by_inverse_layer_idx",
)  # fmt: skip
# Other names of the same thing. Mistral is Llama with a window, which is compared by itself.
_ALIKE = {"mistral": "llama", "swish": "silu", "gelu_pytorch_tanh": "gelu_new"}


def check_config(source: ModelSource, folder: Path) -> None:
    """Raise ModelError where `folder` has a config.json, and it says other numbers than those of
    one of our own decoders; the message names the fields with both values."""
    path = folder / "config.json"
    if source.config is None or not path.is_file():
        return
    theirs = read_hf_config(str(folder), folder).to_dict()
    found = _differences(theirs, stock_config(source.config).to_dict())
    if found:
        raise ModelError(
            f"{path} is not of the model {source.name}: {'; '.join(found)}; give --model a TOML "
            f"file with these values, or plan with hf:{folder} and run with --weights {folder}"
        )


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """A text for each field; of other families only that they are."""
    for names in (("model_type",), _FIELDS):
        first, second = _flat(theirs, names), _flat(ours, names)
        every = [*first, *(key for key in second if key not in first)]
        found = [
            f"{key} is {_text(first.get(key))}, the model's is {_text(second.get(key))}"
            for key in every
            if not _same(first.get(key), second.get(key))
        ]
        if found:
            return found
    return []


def _flat(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """RoPE's parameters, which are tables, key by key; "type" is its old name of "rope_type"."""
    found: dict[str, Any] = {}
    for name in names:
        value = values.get(name)
        if isinstance(value, dict):
            inner = _flat(value, tuple(key for key in value if key != "type"))
            found |= {f"{name}.{key}": item for key, item in inner.items()}
        else:
            found[name] = value
    return found


def _same(first: Any, second: Any) -> bool:
    """Numbers as far as float32 tells them apart; a switch that is absent is off."""
    if isinstance(first, int | float) and isinstance(second, int | float):
        return math.isclose(first, second, rel_tol=1e-6)
    first, second = (_ALIKE.get(v, v) if isinstance(v, str) else v for v in (first, second))
    return (first or None) == (second or None)


def _text(value: Any) -> str:
    return "absent" if value is None else str(value)
